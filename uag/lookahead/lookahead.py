"""How many tokens to draft: the number that makes most output tokens per second.

Rates are compared for several lengths and not for one more candidate only, since the target's seconds jump at some
lengths. Seconds are measured as the run goes and kept across calls; before that, the sizes of the two models stand in.
Acceptance is predicted from the draft's own confidence, calibrated by what was accepted so far; what the call's last
rounds came to counts beside the prediction. Where drafting does not beat plain decoding nothing is drafted for a while,
then a probe looks again, ever more rarely. A prompt that takes the draft longer to read than can be won back is left.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import accumulate
from operator import mul

from uag.lookahead.calibration import Calibration
from uag.lookahead.costs import MAX_CANDIDATES, Costs, size_class, smooth
from uag.lookahead.pauses import SHARE, SHARE_OF_REQUESTS, Pause
from uag.lookahead.record import Record
from uag.lookahead.rounds import Round
from uag.proposal import Proposal

_FIRST_GUESS, _SHORT_GUESS = 5, 2
"""Candidates of the first rounds, and where the draft's work is much: more learn faster and lose more on a bad pair."""

_HEAVY = 0.2
"""A draft of this share of the target's bytes is tried with the short guess: higher learns faster of heavy drafts,
and loses more on those that do not pay."""

_MANY_ROWS = 3
"""So many rows are tried with the short guess, since all of them are drafted for: higher learns faster, loses more."""

_TOO_HEAVY = 0.7
"""A draft of this share of the target's bytes is not tried: higher tries drafts that hardly ever pay."""

_GAIN_TO_DRAFT = 1.02
"""A draft must promise this much over plain decoding before it runs: higher misses small gains, lower risks losses."""

_SURE_GAIN = 1.3
"""Below this gain, plain decoding is measured again now and then: higher finds more gains that rest on one slow
measurement, and drafts in fewer rounds."""

_PREDICTED = 6.0
"""Plain passes' worth of time that a prediction counts as, beside what the last rounds came to: more drafts longer on
text that has become hard, fewer stop at a little bad luck."""

_BAD_LUCK = 0.1
"""What the last rounds may bring the gain below the least one where the prediction is above it: higher drafts longer on
hard text, lower stops more often by mere bad luck."""

_COSTLY = 0.02
"""Drafting without a candidate counts where it takes this share of a target pass: lower also pauses sources that merely
look something up, higher keeps asking cheap drafts that propose nothing."""

_PROVEN = 12.0
"""Plain passes' worth of rounds that paid until the next pause is a short one again: more lose less on text that is
hard throughout, and probe more rarely where it changes."""

_SLOWEST = 2.0
"""A round counts as at most so many times as long as expected: higher lets a single hiccup stop drafting."""

_GAIN_PER_DOUBLING = 0.08
"""Further gain to promise for each doubling of the rows, since the slowest row ends the call: higher misses gains of
large batches, lower risks losses there."""

_GAIN_PER_DOUBLING_OF_REQUESTS = 0.04
"""The same where each row is a request of its own, since those whose candidates are rejected wait for the drafts of the
others: higher misses gains of many requests, lower makes more of them slower than plain decoding."""

_PROBE_SHARE = 0.01
"""Reading the prompt for a mere probe may take this share of plain decoding's time: higher notices sooner that a pair
pays, and loses more on long prompts."""

_COUNTED_TOKENS = 256
"""Output tokens that a call is taken to have at most: higher reads longer prompts for calls that may end early."""


@dataclass(eq=False)
class Lookahead:
    """Decides, round by round, how far to draft.

    Attributes:
        fixed: draft exactly this many tokens a round; None to decide by rate.
        min_confidence: stop a row when the product of its confidences falls below; 0 to leave that to the rate.
        most: candidates of a row at most.
        end_together: rows are one call's, so that it ends with its slowest row; else each is a request of its own.
        reading_s: seconds that a probe takes on top, for prompts that the draft has not read.
    """

    fixed: int | None = None
    min_confidence: float = 0.0
    _: KW_ONLY
    most: int = MAX_CANDIDATES
    end_together: bool = True
    reading_s: float = 0.0

    def __post_init__(self) -> None:
        self._costs: dict[tuple[int, int], Costs] = {}
        self._pauses: dict[tuple[int, int, str], Pause] = {}
        self._records: dict[tuple[int, int, str], Record] = {}
        self._calibrations: dict[str, Calibration] = {}
        self.begin(1, "greedy")

    def begin(
        self,
        batch_size: int,
        mode: str,
        num_prompt_tokens: int = 0,
        num_new_tokens: int = _COUNTED_TOKENS,
        size_ratio: float = 0.0,
    ) -> None:
        """Start a call; what was learnt for the same batch size and mode is used again.

        Args:
            batch_size: rows.
            mode: greedy, or sampling at some temperature: acceptance differs.
            num_prompt_tokens: that draft and target have to read, per row.
            num_new_tokens: output tokens of a row at most.
            size_ratio: bytes of the draft's weights / bytes of the target's; 0 where there is no draft model.
        """
        self._batch_size, self._mode = batch_size, mode
        self._calibration = self._calibrations.setdefault(mode, Calibration())
        self._num_prompt_tokens = num_prompt_tokens
        self._num_left = min(num_new_tokens, _COUNTED_TOKENS)
        self._size_ratio = size_ratio
        self._is_started = self._is_probing = self._may_draft = False
        # By row: the probability that all its candidates are accepted, and how many of them are expected to be.
        self._so_far: dict[int, tuple[float, float]] = {}
        self._num_rows = batch_size
        self._records.clear()
        self._go_by(batch_size)
        if self._knows_costs() and self._is_promised():
            self._pause.cancel()  # it was the last text's

    def _go_by(self, num_rows: int) -> None:
        """Use the costs and the pause of about so many rows of the batch."""
        key = self._batch_size, size_class(num_rows)
        if key not in self._costs:
            # Draft passes run all rows of a batch, so where some have ended they cost the same as before.
            self._costs[key] = self._now.with_other_target() if num_rows < self._num_rows else Costs()
        self._num_rows = num_rows
        self._now: Costs = self._costs[key]
        self._pause = self._pauses.setdefault((*key, self._mode), Pause())
        self._record = self._records.setdefault((*key, self._mode), Record())

    # ------------------------------------------------------------------ before a round

    def drafts_first(self) -> bool:
        """Whether to draft before the prompt's own pass: where the length is fixed or the draft is known to pay."""
        return self.fixed is not None or (self._knows_costs() and self._pays() and self._pays_to_start(1.0))

    def plan(self, num_rows: int | None = None) -> int:
        """Return the most candidates that this round may draft; 0 for plain decoding.

        Args:
            num_rows: rows that run now, where it is not the number that the batch began with: costs go by it.
        """
        limit = self._plan(num_rows)
        self._may_draft = limit > 0
        return limit

    def _plan(self, num_rows: int | None) -> int:
        self._so_far, self._is_probing = {}, False
        if num_rows is not None:
            self._go_by(num_rows)
        costs = self._now
        if self.fixed is not None:
            return self.fixed
        if self._pause.take():
            return 0
        if not costs.draft.is_known:
            return self._guess() if self._size_ratio < _TOO_HEAVY and self._pays_to_start(1.0) else 0
        if 1 not in costs.target_s:
            return 0  # plain decoding is measured first
        if self._pays():
            self._pause.is_over = True
            # A small gain may rest on plain passes of long ago, or on a few.
            is_doubtful = costs.is_plain_due() and self._gain() < _SURE_GAIN
            may_draft = self._is_started or self._pays_to_start(1.0)
            return self.most if may_draft and not is_doubtful else 0
        guess = self._guess()
        if self._pause.is_over:
            probe_s = self.reading_s + costs.draft(guess) + costs.target(guess + 1) - costs.target(1)
            self._pause.begin(probe_s, costs.target(1), SHARE if self.end_together else SHARE_OF_REQUESTS)
            self._record.forget()
            return 0
        self._is_probing = self._is_started or self._pays_to_start(_PROBE_SHARE)
        return guess if self._is_probing else 0

    def _guess(self) -> int:
        """Candidates to try where it is not known what pays: few where the draft's work is much."""
        is_much = self._size_ratio >= _HEAVY or self._num_rows >= _MANY_ROWS
        return min(_SHORT_GUESS if is_much else _FIRST_GUESS, self.most)

    def draft_s(self, num_candidates: float) -> float:
        """Return the seconds that drafting so many candidates takes now; 0 before it was measured."""
        return self._now.draft(num_candidates)

    def _knows_costs(self) -> bool:
        return self._now.draft.is_known and 1 in self._now.target_s

    def _pays(self) -> bool:
        gain, least = self._gain(), self._least_gain()
        return gain >= least or (gain >= least - _BAD_LUCK and self._is_promised())

    def _is_promised(self) -> bool:
        """Whether the prediction alone is enough, whatever the last rounds came to."""
        return self._predicted_rate() * self._now.target(1) >= self._least_gain()

    def _gain(self) -> float:
        """How many times as fast as plain decoding the draft model is expected to be."""
        return self.model_rate() * self._now.target(1)

    def _least_gain(self) -> float:
        return _GAIN_TO_DRAFT + self._gain_of_rows()

    def _gain_of_rows(self) -> float:
        per_doubling = _GAIN_PER_DOUBLING if self.end_together else _GAIN_PER_DOUBLING_OF_REQUESTS
        return per_doubling * size_class(self._num_rows)

    def _pays_to_start(self, share: float) -> bool:
        """Whether reading the prompt with the draft costs at most `share` of what it can win in this call."""
        costs = self._now
        token_s = costs.draft_token_s
        if token_s is None and costs.target_token_s is not None:
            token_s = costs.target_token_s * self._size_ratio
        if token_s is None or 1 not in costs.target_s:
            return True
        won = 1.0 - 1.0 / max(self._gain(), 1e-9) if self._knows_costs() else 0.5
        won = max(won, 0.5 if share < 1.0 else 0.0)  # a probe hopes for more than is known
        return token_s * self._num_prompt_tokens <= share * won * (self._num_left * costs.target(1))

    def model_rate(self) -> float:
        """Return the best expected output tokens per second and row with the draft model, before a round."""
        return self._record.rate(self._predicted_rate(), _PREDICTED * self._now.target(1))

    def _predicted_rate(self) -> float:
        """The same by what was accepted so far, whatever the last rounds came to."""
        return self._now.best_rate(self._calibration.mean, self.most, 0, 1.0, 0.0)

    def best_common(self, rates_of_rows: Sequence[Sequence[float]]) -> tuple[int, float]:
        """Choose how many free candidates each row may take at most: the longest row's pass is every row's.

        Args:
            rates_of_rows: for every row that runs, the predicted acceptance of each candidate, given those before it.

        Returns:
            The number and its expected output tokens per second and row; 0 where none pays.
        """
        costs = self._now
        if 1 not in costs.target_s:
            return 0, 0.0  # plain decoding is measured first
        best, best_rate = 0, (1.0 + self._gain_of_rows()) / costs.target(1)
        num_rows = max(len(rates_of_rows), 1)
        expected = float(num_rows)
        reached = [list(accumulate(rates, mul)) for rates in rates_of_rows]
        for size in range(1, max(map(len, reached), default=0) + 1):
            expected += sum(reach[size - 1] for reach in reached if len(reach) >= size)
            rate = expected / num_rows / costs.target(size + 1)
            if rate > best_rate:
                best, best_rate = size, rate
        return best, best_rate

    def go_on(self, row: int, proposals: Sequence[Proposal]) -> bool:
        """Say whether a row should draft one more candidate; asked once behind each candidate of a round."""
        confidence = proposals[-1].confidence
        reach, expected = self._so_far.get(row, (1.0, 0.0))
        reach *= self._calibration.rate(confidence) if self.fixed is None else confidence
        expected += reach
        self._so_far[row] = (reach, expected)
        if reach < self.min_confidence or self.fixed is not None or not self._knows_costs():
            return reach >= self.min_confidence
        costs, length = self._now, len(proposals)
        further = costs.best_rate(self._calibration.mean, self.most, length, reach, expected)
        return further > costs.rate(length, expected)

    # ------------------------------------------------------------------ after a round

    def learn_prefill(self, seconds: float) -> None:
        """Learn from the target's own pass over the prompt."""
        if self._num_prompt_tokens > 1:
            costs = self._now
            costs.target_token_s = smooth(costs.target_token_s, seconds / self._num_prompt_tokens)

    def learn_round(self, done: Round) -> None:
        """Learn from a round."""
        costs, num_drafted = self._now, done.num_drafted
        if not done.is_first:
            costs.learn_target(done.num_candidates + 1, done.target_s)
        if done.prefill_s > 0.0:
            self._is_started = True
            costs.draft_token_s = smooth(costs.draft_token_s, done.prefill_s / max(self._num_prompt_tokens, 1))
        if num_drafted is None:
            num_drafted = max((len(proposals) for proposals, _ in done.outcomes), default=0)
        is_in_vain = done.num_candidates == 0 and done.num_drafted is None and self._may_draft
        if is_in_vain and done.draft_s > _COSTLY * costs.target(1):
            num_drafted = 1  # as if it had been one candidate, and rejected
            self._calibration.learn(0.0, False)
        if num_drafted and done.draft_s > 0.0:
            costs.draft.learn(num_drafted, done.draft_s)
        for proposals, num_accepted in done.outcomes:
            self._calibration.learn_row(proposals, num_accepted)
        if num_drafted and done.outcomes and not done.is_first and self._knows_costs():
            self._note(done, num_drafted)
        if self._is_probing and num_drafted:
            self._is_probing = False
            self._pause.end(self._pays())
        self._num_left = max(self._num_left - 1, 1)

    def _note(self, done: Round, num_drafted: float) -> None:
        """Note what a round with candidates came to."""
        expected_s = self._now.draft(num_drafted) + self._now.target(done.num_candidates + 1)
        tokens = 1.0 + sum(num_accepted for _, num_accepted in done.outcomes) / len(done.outcomes)
        self._record.add(tokens, min(done.draft_s + done.target_s, _SLOWEST * expected_s))
        if self._record.seconds > _PROVEN * self._now.target(1) and self._pays():
            self._pause.length = 0
