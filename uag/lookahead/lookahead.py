"""How many tokens to draft: a decision per round, and one per candidate.

Per round, drafting and plain decoding are two arms of a bandit; the speed of plain decoding is known. A round drafts
if the recent rounds of this text beat plain decoding at current costs, with the rounds of earlier texts as the prior.
Otherwise, trials may use a small share of plain decoding's time: Conservative Bandits (arXiv:1602.04282).

Per candidate, drafting is an optimal stopping problem, which a threshold solves (SpecDec++, arXiv:2405.19715, section
4): draft one more candidate if it is expected to save more time than it takes.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from uag.lookahead.acceptance import AcceptanceModel, Round
from uag.lookahead.costs import SHORTEST_S, Costs
from uag.proposal import Proposal

MAX_CANDIDATES = 32  # maximum number of candidates per row
_FIRST_CANDIDATES = 4  # candidates of the first round that drafts; later ones add those accepted so far
_TRIAL_SHARE = 0.004  # share of plain decoding's time for trials: once at the start of a call, and as it proceeds
_NUM_TRIALS = 3  # unsuccessful trials until their costs are believed: something else may have slowed them
_GAIN_PER_DOUBLING = 0.06  # additional gain required per doubling of the rows, because a call ends with its slowest row
_MOST_COUNTED = 256  # maximum number of output tokens that a call is assumed to generate when it starts


@dataclass(eq=False)
class Lookahead:
    """Decides in each round how far to draft, and keeps what it learned across calls.

    Attributes:
        fixed: draft exactly this many tokens a round; None to decide by expected speed.
        min_confidence: stop a row when the product of its confidences falls below this; 0 to go by speed alone.
    """

    fixed: int | None = None
    min_confidence: float = 0.0

    def __post_init__(self) -> None:
        self._costs_by_size: dict[tuple[int, int | None], Costs] = {}
        self._acceptances: defaultdict[str, AcceptanceModel] = defaultdict(AcceptanceModel)
        self._trial_tokens = 0.0  # tokens generated plainly since the last unsuccessful trial
        self._lost: deque[tuple[float, float]] = deque(maxlen=_NUM_TRIALS)  # (time in plain passes, tokens) of each
        self.begin(1, "greedy")

    def begin(
        self,
        num_rows: int,
        mode: str,
        num_prompt_tokens: int = 0,
        num_new_tokens: int = 0,
        size_ratio: float = 0.0,
        pass_width: int | None = None,
    ) -> None:
        """Start a call; reuse what was learned for a similar number of rows and the same mode, a rule of selection.

        Prompt tokens and the most new tokens are those of the longest row. `size_ratio` is bytes of the draft's weights
        per byte of the target's; `pass_width` the tokens per row of every target pass, None for as many as there are
        candidates.
        """
        self._num_unread, self._num_left, self._num_written = num_prompt_tokens, float(num_new_tokens), 0.0
        self._trial_tokens += min(self._num_left, _MOST_COUNTED)  # a trial is most useful at the start of a text
        self._size_ratio, self._pass_width = size_ratio, pass_width
        self._prefill_s = self._reading_loss_s = 0.0
        self._least_plain_s = 1.0
        self._acceptance = self._acceptances[mode]
        self._acceptance.begin()
        self._is_trial = self._may_draft = self._has_won = False
        self._num_rounds = self._num_drafting = 0
        # By row, the probability that all its candidates are accepted (0 if it stopped), and how many it has.
        self._reached: dict[int, tuple[float, int]] = {}
        self._set_rows(num_rows)

    def _set_rows(self, num_rows: int) -> None:
        """Use the costs for this number of rows, rounded up to a power of two."""
        self._num_doublings = (num_rows - 1).bit_length()
        key = self._num_doublings, self._pass_width
        self.costs = self._costs_by_size.setdefault(key, Costs(is_flat=self._pass_width is not None))
        self.costs.size_ratio, self.costs.least_plain_s = self._size_ratio, self._least_plain_s
        self._required_gain = 1.0 + _GAIN_PER_DOUBLING * self._num_doublings
        self._price()

    def _price(self) -> None:
        prices, acceptance = self.costs.prices(), self._acceptance
        gain = acceptance.gain(prices)
        self.prices, self._gain = prices, gain / self._required_gain
        # One more candidate must save the time it takes, at the current speed (Dinkelbach's method for ratios).
        token_s = prices.plain_s / max(gain, 1.0)
        candidate_s = prices.verify_candidate_s + prices.draft_candidate_s
        self._least_reach = candidate_s / token_s / max(acceptance.mean, 1e-9)

    # ------------------------------------------------------------------ before a round

    def plan(self, num_rows: int | None = None) -> int:
        """Return the maximum number of candidates for this round, with this many active rows; 0 for plain decoding."""
        if num_rows is not None and (num_rows - 1).bit_length() != self._num_doublings:
            self._set_rows(num_rows)
        self._reached.clear()
        limit = self._limit() if self.fixed is None else self.fixed
        self._may_draft = limit > 0
        self._num_rounds, self._num_drafting = self._num_rounds + 1, self._num_drafting + self._may_draft
        return limit

    def _limit(self) -> int:
        """Choose the maximum number of candidates of a round: 0, 1 for a trial, or the maximum."""
        self._is_trial = False
        costs = self.costs
        if not (costs.plain or (self._size_ratio and self._prefill_s)):
            return 0  # nothing predicts costs: the first round measures a plain pass
        if self._gain >= 1.0:  # drafting is faster
            self._lost.clear()
            if costs.is_plain_due(self._gain) or not self._pays():
                return 0
            if not (costs.draft.points or self._size_ratio):
                return 1  # measures what drafting costs
            return min(_FIRST_CANDIDATES + int(self._acceptance.num_accepted), MAX_CANDIDATES)
        if not costs.plain or (costs.num_since_plain and not self._has_won):
            return 0  # a plain pass shows whether something else slows all passes down
        self._is_trial = self._trial_loss_s() <= self._trial_budget_s()
        return int(self._is_trial)

    def _pays(self) -> bool:
        """Whether drafting is expected to repay the time to read the prompt, or to lose no more than trials may."""
        self._reading_loss_s = self._reading_loss_of(self._gain)
        return self._reading_loss_s <= self._trial_budget_s()

    def _trial_budget_s(self) -> float:
        return _TRIAL_SHARE * self._trial_tokens * self.prices.plain_s

    def _trial_loss_s(self) -> float:
        """Return the expected loss of a trial of one candidate, which may have to read a prompt first."""
        prices, hope = self.prices, self._hope()
        if self._believes_trials:
            optimistic_s = min(cost - num_tokens for cost, num_tokens in self._lost) * prices.plain_s
        else:
            optimistic_s = max(1.0 - hope, 0.0) * self.costs.guess(prices.plain_s).round_s(1.0)
        loss_s = min((1.0 - self._gain) * prices.round_s(1.0), optimistic_s)
        # If the trial could show a gain, the call would go on drafting, which repays the reading.
        return loss_s + (max(self._reading_loss_of(max(hope, 1.0)), 0.0) if self._num_unread else 0.0)

    def _hope(self) -> float:
        """Return the best gain that a trial could reveal: the guesses', until trials contradict them."""
        if self._believes_trials:
            gain = (1.0 + self._acceptance.mean) / min(cost for cost, _ in self._lost)
        else:
            gain = self._acceptance.gain(self.costs.guess(self.prices.plain_s))
        return max(self._gain, gain / self._required_gain)

    @property
    def _believes_trials(self) -> bool:
        """Whether enough trials in a row have lost. Measured costs alone may be those of a stall, and would stay."""
        return len(self._lost) == _NUM_TRIALS

    def _reading_loss_of(self, gain: float) -> float:
        """Return the seconds of reading the prompt that the rest of the call does not save at this gain."""
        # A call may end early, so it is expected to generate as many tokens again as it has, within its limit.
        num_left = min(self._num_left, max(self._num_written, _MOST_COUNTED))
        return self._unread_s() - (1.0 - 1.0 / gain) * num_left * self.prices.plain_s

    def _unread_s(self) -> float:
        """Predict the seconds in which the draft reads the prompt; 0 if it has."""
        known = self._num_unread, self._prefill_s, self.prices.draft_candidate_s
        return self.costs.reading_s(*known) if self._num_unread else 0.0

    def reason(self) -> str:
        """Return why less than half of the call's rounds were allowed to draft; empty if more were."""
        if 2 * self._num_drafting >= self._num_rounds or not self.costs.plain:
            return ""
        prices = self.prices
        if self._gain >= 1.0 and self._num_unread:
            return (
                f"the draft has not read the prompt of {self._num_unread:,} tokens: this takes about "
                f"{self._unread_s():.2f} s, longer than drafting was expected to save"
            )
        costs, accepted = ("costs", "is") if self.costs.draft.points else ("would cost about", "is assumed to be")
        return (
            f"a candidate {costs} {1e3 * (prices.round_s(1.0) - prices.plain_s):.2f} ms and {accepted} accepted "
            f"{self._acceptance.mean:.0%} of the time; a plain pass costs {1e3 * prices.plain_s:.2f} ms"
        )

    def model_rate(self) -> float:
        """Return the expected output tokens per second and row with the draft model."""
        return self._gain / self.prices.plain_s

    def best_common(self, rates_of_rows: Sequence[Sequence[float]]) -> tuple[int, float]:
        """Choose the maximum number of free candidates per row; the longest row decides how wide the pass is.

        `rates_of_rows` are the predicted acceptances of each active row's candidates, given those before. Returns the
        number and its expected output tokens per second and row; 0 if none pays off.
        """
        if not (self.costs.plain or self.costs.block.points):
            return 0, 0.0  # plain decoding is measured first
        required = 1.0 if self.costs.is_flat else self._required_gain  # free slots are filled at no cost
        best, best_rate = 0, required / self.prices.plain_s
        expected, last_rate = 1.0, 0.0
        reached = [list(accumulate(rates, mul)) for rates in rates_of_rows]
        for size in range(1, max(map(len, reached), default=0) + 1):
            expected += sum(reach[size - 1] for reach in reached if len(reach) >= size) / len(reached)
            rate = expected / (self.prices.verify_s + size * self.prices.verify_candidate_s)
            if rate < last_rate:
                break  # each candidate gains at most as much as the one before it, at the same cost
            last_rate = rate
            if rate > best_rate:
                best, best_rate = size, rate
        return best, best_rate

    def go_on(self, row: int, proposals: Sequence[Proposal]) -> bool:
        """Return whether a row should draft one more candidate; called once after each candidate."""
        is_adaptive = self.fixed is None
        confidence = proposals[-1].confidence
        reach, size = self._reached.get(row, (1.0, 0))[0], len(proposals)
        reach *= self._acceptance.rate(confidence) if is_adaptive else confidence
        self._reached[row] = reach, size
        worth = reach
        if all(num <= size for _, num in self._reached.values()):
            # The pass gets wider for all rows, so those that stopped count as rejected candidates.
            going = sum(each for each, num in self._reached.values() if num >= size - 1)
            worth = min(reach, going / len(self._reached))
        goes_on = reach >= self.min_confidence and (worth > self._least_reach or not is_adaptive)
        if not goes_on:
            self._reached[row] = 0.0, size
        return goes_on

    # ------------------------------------------------------------------ after a round

    def learn_prefill(self, seconds: float) -> None:
        """Record the time of the target's pass over the prompt."""
        self._prefill_s = seconds = max(seconds, SHORTEST_S)
        self._least_plain_s = self.costs.least_plain_s = seconds / max(self._num_unread, 1)
        self._price()

    def learn_round(self, done: Round) -> None:
        plain_s = self.costs.plain_s
        num_drafted = self._num_drafted_in(done)
        self._learn_passes(done, num_drafted)
        if num_drafted or done.num_candidates or self.costs.plain_s != plain_s:
            self._price()
        num_tokens = done.num_tokens
        if num_tokens is None:
            num_tokens = 1.0 + sum(num for _, num in done.outcomes) / max(len(done.outcomes), 1)
        self._num_left = max(self._num_left - num_tokens, 1.0)
        self._num_written += num_tokens
        if not num_drafted:
            self._trial_tokens += num_tokens
        elif self._is_trial:
            self._has_won = self.prices.round_s(num_drafted) <= num_tokens * self.prices.plain_s
            if not self._has_won:  # compared with the plain pass before it, which the same load slowed down
                cost = max(done.draft_s + done.target_s, SHORTEST_S) / max(self.costs.plain[-1], self.prices.plain_s)
                self._lost.append((cost, num_tokens))
                self._trial_tokens = 0.0

    def _num_drafted_in(self, done: Round) -> float:
        """Return the candidates per row that a round's drafting took time for."""
        num_drafted = max((len(proposals) for proposals, _ in done.outcomes), default=0)
        if self._may_draft and not done.num_candidates and done.draft_s > _TRIAL_SHARE * self.prices.plain_s:
            return 1.0  # drafting took time and proposed nothing: counts as one rejected candidate
        return num_drafted

    def _learn_passes(self, done: Round, num_drafted: float) -> None:
        costs = self.costs
        if not done.is_special:
            costs.learn_target(done.num_candidates, done.target_s)
        if done.prefill_s > 0.0 and self._num_unread:
            costs.reading.add(self._num_unread, done.prefill_s)
            self._num_unread = 0
            if self._reading_loss_s > 0.0:
                self._trial_tokens = 0.0  # an expected loss uses up what trials may cost
        if num_drafted:
            costs.num_since_plain += 1
            self._acceptance.learn(done.outcomes, num_drafted)
            if done.draft_s > 0.0:
                costs.learn_draft(num_drafted, done.num_draft_passes, done.draft_s)
