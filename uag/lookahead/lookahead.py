"""How many tokens to draft: a decision per round, and one per candidate.

Per round, drafting and plain decoding are two arms of a bandit; the worth of plain decoding is known. A round drafts
while the last rounds of this text beat plain decoding at present costs, with those of earlier texts as the prior. Where
they do not, trials may take a small share of plain decoding's time: Conservative Bandits (arXiv:1602.04282, section 3).

Per candidate, drafting is a problem of optimal stopping, which a threshold solves (SpecDec++, arXiv:2405.19715, section
4): draft on while one more candidate promises more than its seconds are worth.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import accumulate
from operator import mul

from uag.lookahead.acceptance import AcceptanceModel, RowOutcome
from uag.lookahead.costs import Costs
from uag.proposal import Proposal

MAX_CANDIDATES = 32
"""Candidates of a row at most. Increase to gain a little on easy text; decrease to bound a round's seconds."""

_HANDFUL = 4
"""Candidates of a trial. Increase to learn more from each; decrease to lose less where drafting does not pay."""

_TRIAL_SHARE = 0.008
"""Share of plain decoding's time that trials may take: once in advance as a call begins, and once as it goes on.
Increase to notice sooner that drafting pays; decrease to lose less where it does not."""

_GAIN_PER_DOUBLING = 0.06
"""Further gain required per doubling of the rows, since a call ends with its slowest row, and requests wait for each
other's drafts. Increase to avoid losses in large batches; decrease to take smaller gains there."""

_MOST_COUNTED = 256
"""Output tokens that a call is assumed to write at most. Increase to have the draft read longer prompts; decrease to
lose less on calls that end early."""


@dataclass(frozen=True)
class Round:
    """One round of drafting and verifying.

    Attributes:
        num_candidates: of the longest row; the target pass had one token more per row.
        draft_s: seconds of drafting, without reading the prompt; 0 where the draft model was not asked.
        target_s: seconds of the target pass.
        outcomes: of the rows that the draft model drafted for.
        prefill_s: seconds of reading the prompt with the draft; 0 where it was read before.
        is_first: the target pass read the prompt too, so its time says nothing about later passes.
        num_drafted: candidates that `draft_s` paid for, per row; None for those of the longest row.
    """

    num_candidates: int
    draft_s: float
    target_s: float
    outcomes: Sequence[RowOutcome]
    prefill_s: float = 0.0
    is_first: bool = False
    num_drafted: float | None = None


@dataclass(eq=False)
class Lookahead:
    """Decides, round by round, how far to draft; keeps what it learnt across calls.

    Attributes:
        fixed: draft exactly this many tokens a round; None to decide by expected speed.
        min_confidence: stop a row when the product of its confidences falls below; 0 to leave that to the speed.
        most: candidates of a row at most.
        reading_s: seconds that a trial takes on top, to read prompts of requests that came while nothing was drafted.
    """

    fixed: int | None = None
    min_confidence: float = 0.0
    _: KW_ONLY
    most: int = MAX_CANDIDATES
    reading_s: float = 0.0

    def __post_init__(self) -> None:
        self._costs_by_size: defaultdict[int, Costs] = defaultdict(Costs)
        self._acceptances: defaultdict[str, AcceptanceModel] = defaultdict(AcceptanceModel)
        self._trial_tokens = 0.0  # plain tokens that were written since a trial lost
        self.begin(1, "greedy")

    def begin(
        self, num_rows: int, mode: str, num_prompt_tokens: int = 0, num_new_tokens: int = 0, size_ratio: float = 0.0
    ) -> None:
        """Start a call; what was learnt for about as many rows and the same mode is used again.

        Args:
            num_rows: rows of the batch.
            mode: greedy, or sampling at some temperature: acceptance differs.
            num_prompt_tokens: of the longest row.
            num_new_tokens: of the longest row, at most.
            size_ratio: bytes of the draft's weights per byte of the target's.
        """
        self._num_unread, self._num_left = num_prompt_tokens, float(min(num_new_tokens, _MOST_COUNTED))
        self._trial_tokens += self._num_left  # a trial is worth most at the start of a text
        self._size_ratio, self._prefill_s = size_ratio, 0.0
        self._acceptance = self._acceptances[mode]
        self._acceptance.begin()
        self._is_trial = self._may_draft = False
        self._reached: dict[int, float] = {}  # by row, the probability that all candidates so far are accepted
        self._set_rows(num_rows)

    def _set_rows(self, num_rows: int) -> None:
        """Go by the costs of about so many rows."""
        num_doublings = (num_rows - 1).bit_length()
        self.costs = self._costs_by_size[num_doublings]
        self.costs.size_ratio = self._size_ratio
        self._required_gain = 1.0 + _GAIN_PER_DOUBLING * num_doublings
        self._price()

    def _price(self) -> None:
        """Update what follows from costs and acceptance."""
        prices, acceptance = self.costs.prices(), self._acceptance
        gain = acceptance.gain(prices)
        self.prices, self._gain = prices, gain / self._required_gain
        # One more candidate must win its seconds, at what a token takes now (Dinkelbach's method for ratios).
        token_s = prices.plain_s / max(gain, 1.0)
        candidate_s = prices.verify_candidate_s + prices.draft_candidate_s
        self._least_reach = candidate_s / token_s / max(acceptance.mean, 1e-9)

    # ------------------------------------------------------------------ before a round

    def drafts_first(self) -> bool:
        """Whether to draft before the prompt's own pass: where the length is fixed or the draft is known to pay."""
        is_known = self.costs.plain and self.costs.draft.points
        return self.fixed is not None or bool(is_known and self._pays())

    def plan(self, num_rows: int | None = None) -> int:
        """Return the most candidates that this round may draft; 0 for plain decoding.

        Args:
            num_rows: rows that run now, where it is not the number that the call began with: costs go by it.
        """
        if num_rows is not None:
            self._set_rows(num_rows)
        self._reached.clear()
        limit = self._limit() if self.fixed is None else self.fixed
        self._may_draft = limit > 0
        return limit

    def _limit(self) -> int:
        self._is_trial, handful = False, min(_HANDFUL, self.most)
        if self.costs.is_plain_due and (self._gain >= 1.0 or not self.costs.plain):
            return 0
        if self._gain >= 1.0:
            return (self.most if self.costs.draft.points else handful) if self._pays() else 0
        size = handful if self._acceptance.mean > self._least_reach else 1
        loss_s = (1.0 - self._gain) * self.prices.round_s(size) + self._unread_s() + self.reading_s
        self._is_trial = loss_s <= _TRIAL_SHARE * self._trial_tokens * self.prices.plain_s
        return size if self._is_trial else 0

    def _pays(self) -> bool:
        """Whether drafting wins more in what is left of the call than reading the prompt takes."""
        return self._unread_s() <= (1.0 - 1.0 / self._gain) * self._num_left * self.prices.plain_s

    def _unread_s(self) -> float:
        """Predict the seconds in which the draft reads the prompt; 0 where it has."""
        return self.costs.reading_s(self._num_unread, self._prefill_s) if self._num_unread else 0.0

    def model_rate(self) -> float:
        """Return the expected output tokens per second and row with the draft model, before a round."""
        return self._gain / self.prices.plain_s

    def best_common(self, rates_of_rows: Sequence[Sequence[float]]) -> tuple[int, float]:
        """Choose how many free candidates each row may take at most: the longest row's pass is every row's.

        Args:
            rates_of_rows: for every row that runs, the predicted acceptance of each candidate, given those before it.

        Returns:
            The number and its expected output tokens per second and row; 0 where none pays.
        """
        if not self.costs.plain:
            return 0, 0.0  # plain decoding is measured first
        best, best_rate = 0, self._required_gain / self.prices.plain_s
        expected = 1.0
        reached = [list(accumulate(rates, mul)) for rates in rates_of_rows]
        for size in range(1, max(map(len, reached), default=0) + 1):
            expected += sum(reach[size - 1] for reach in reached if len(reach) >= size) / len(reached)
            rate = expected / (self.prices.verify_s + size * self.prices.verify_candidate_s)
            if rate > best_rate:
                best, best_rate = size, rate
        return best, best_rate

    def go_on(self, row: int, proposals: Sequence[Proposal]) -> bool:
        """Say whether a row should draft one more candidate; called once after each candidate of a round."""
        is_adaptive = self.fixed is None and bool(self.costs.plain)
        confidence = proposals[-1].confidence
        reach = self._reached.get(row, 1.0) * (self._acceptance.rate(confidence) if is_adaptive else confidence)
        self._reached[row] = reach
        return reach >= self.min_confidence and (reach > self._least_reach or not is_adaptive)

    # ------------------------------------------------------------------ after a round

    def learn_prefill(self, seconds: float) -> None:
        """Learn from the target's own pass over the prompt."""
        self._prefill_s = seconds

    def num_to_measure(self) -> int:
        """Return how many prompt tokens the draft should read beforehand, to measure its speed; 0 for none."""
        return self.costs.num_to_measure(self._num_unread) if self.fixed is None else 0

    def learn_reading(self, num_tokens: int, seconds: float) -> None:
        """Learn from the draft's pass over so many tokens of each row's prompt."""
        self.costs.reading.points.append((num_tokens, seconds))

    def learn_round(self, done: Round) -> None:
        """Learn from a round."""
        costs, num_drafted = self.costs, done.num_drafted
        if not done.is_first:
            costs.learn_target(done.num_candidates, done.target_s)
        if done.prefill_s > 0.0 and self._num_unread:
            self.learn_reading(self._num_unread, done.prefill_s)
            self._num_unread = 0
        if num_drafted is None:
            num_drafted = max((len(proposals) for proposals, _ in done.outcomes), default=0)
            if self._may_draft and not done.num_candidates and done.draft_s > _TRIAL_SHARE * self.prices.plain_s:
                num_drafted = 1.0  # drafting took time and proposed nothing: as one candidate that was rejected
        if num_drafted:
            self._acceptance.learn(done.outcomes, num_drafted)
            if done.draft_s > 0.0:
                costs.draft.points.append((num_drafted, done.draft_s))
        self._price()
        num_tokens = 1.0 + sum(num for _, num in done.outcomes) / max(len(done.outcomes), 1)
        self._num_left = max(self._num_left - num_tokens, 1.0)
        if not num_drafted:
            self._trial_tokens += num_tokens
        elif self._is_trial and self.prices.round_s(num_drafted) > num_tokens * self.prices.plain_s:
            self._trial_tokens = 0.0
