"""How many tokens to draft: the number that maximises output tokens per second.

`expected output tokens / (draft work + target pass at that length)` is compared over all lengths: a marginal rule
stops too early where the target pass jumps. Costs are measured as the run goes and kept across calls; acceptance is
predicted from the draft's own confidence and calibrated by what was accepted so far. Before anything is known, the
sizes of the two models stand in for the measurement. Where no length beats plain decoding nothing is drafted, and a
probe looks again, ever more rarely. A draft that would have to read more than it can win back is not started.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from uag.lookahead.calibration import Calibration
from uag.lookahead.costs import MAX_CANDIDATES, Costs, size_class, smooth
from uag.lookahead.pauses import Pauses
from uag.proposal import Proposal

_FIRST_GUESS, _SHORT_GUESS = 5, 2
"""Candidates of the first rounds, and where the draft's work is much: more learn faster and lose more on a bad pair."""

_HEAVY = 0.2
"""A draft of this share of the target's weights is tried with the short guess first."""

_MANY_ROWS = 3
"""So many rows are tried with the short guess, too: they share the target's pass and add to the draft's work."""

_TOO_HEAVY = 0.7
"""A draft of this share of the target's weights is taken to lose without being run."""

_LOOK_AHEAD = 8
"""Lengths compared beyond the present one: more see past a jump in the target's cost, and take longer per candidate."""

_PAUSE_SHARE, _PAUSE_SHARE_OF_REQUESTS = 0.1, 0.05
"""What a probe may cost, as a share of the pause before it: higher notices sooner that a pair pays, and loses more."""

_GAIN_TO_DRAFT = 1.02
"""A draft must promise this much over plain decoding before it runs: higher misses small gains, lower risks losses."""

_SURE_GAIN = 1.3
"""Where it promises less than this, plain decoding is measured again now and then, which costs those rounds' gain."""

_GAIN_PER_DOUBLING = 0.08
"""More promised for each doubling of the rows: they end apart, and the batch ends with its slowest row."""

_PROBE_SHARE = 0.01
"""Reading the prompt for a mere probe may cost this share of what plain decoding of the rest takes."""

_COUNTED_TOKENS = 256
"""Output tokens that a call is taken to have at most: higher reads longer prompts for calls that may end early."""


class Lookahead:
    """Decides, round by round, how far to draft.

    Args:
        fixed: draft exactly this many tokens a round; None to decide by rate.
        min_confidence: stop a row when the product of its confidences falls below; 0 to leave that to the rate.
        most: candidates of a row at most.
        end_together: rows are one call's, so that it ends with its slowest row; else each is a request of its own.

    Attributes:
        reading_s: seconds that a probe takes on top, for prompts that the draft has not read.
    """

    def __init__(
        self,
        fixed: int | None = None,
        min_confidence: float = 0.0,
        *,
        most: int = MAX_CANDIDATES,
        end_together: bool = True,
    ) -> None:
        self.fixed = fixed
        self.min_confidence = min_confidence
        self.most = most
        self.reading_s = 0.0
        self._gain_per_doubling = _GAIN_PER_DOUBLING if end_together else 0.0
        self._pauses = Pauses(_PAUSE_SHARE if end_together else _PAUSE_SHARE_OF_REQUESTS)
        self._costs: dict[tuple[int, int], Costs] = {}
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
            size_ratio: weights of the draft / weights of the target; 0 where there is no draft model.
        """
        self._key = (batch_size, mode)
        self._num_rows = batch_size
        self._now = self._costs.setdefault((batch_size, size_class(batch_size)), Costs())
        self._calibration = self._calibrations.setdefault(mode, Calibration())
        self._num_prompt_tokens = num_prompt_tokens
        self._num_left = min(num_new_tokens, _COUNTED_TOKENS)
        self._size_ratio = size_ratio
        self._is_started = False
        self._is_probing = False
        self._reach: dict[int, float] = {}

    # ------------------------------------------------------------------ before a round

    def drafts_first(self) -> bool:
        """Whether to draft before the prompt's own pass: where the length is fixed or the draft is known to pay."""
        if self.fixed is not None:
            return True
        return self._knows_costs() and self._pays() and self._pays_to_start(1.0)

    def plan(self, num_rows: int | None = None) -> int:
        """Return the most candidates that this round may draft; 0 for plain decoding.

        Args:
            num_rows: rows that run now, where it is not the number that the batch began with: costs go by it.
        """
        self._reach = {}
        if num_rows is not None:
            self._count_rows(num_rows)
        if self.fixed is not None:
            return self.fixed
        self._is_probing = False
        if self._pauses.take(self._pause_key()):
            return 0
        if not self._now.draft.is_known:
            return self._first_guess()
        if 1 not in self._now.target_s:
            return 0
        if self._pays():
            may_draft = self._is_started or self._pays_to_start(1.0)
            return 0 if not may_draft or self._is_doubtful() else self.most
        return self._probe() if self._pause_key() in self._pauses else self._pause()

    def _count_rows(self, num_rows: int) -> None:
        """Go by the costs of passes over about so many rows."""
        key, last = (self._key[0], size_class(num_rows)), self._now
        if key not in self._costs:
            is_fewer = num_rows < self._num_rows
            self._costs[key] = (
                Costs({}, replace(last.draft), last.draft_token_s, last.target_token_s) if is_fewer else Costs()
            )
        self._num_rows = num_rows
        self._now = self._costs[key]

    def _guess(self) -> int:
        """Candidates to try where it is not known what pays: few where the draft's work is much."""
        is_much = self._size_ratio >= _HEAVY or self._num_rows >= _MANY_ROWS
        return min(_SHORT_GUESS if is_much else _FIRST_GUESS, self.most)

    def _first_guess(self) -> int:
        if self._size_ratio >= _TOO_HEAVY or not self._pays_to_start(1.0):
            return 0
        return self._guess()

    def _pause_key(self) -> tuple[int, str, int]:
        return (*self._key, size_class(self._num_rows))

    def _pause(self) -> int:
        """Begin to decode plainly for a while; what is left of it at the end of a call is left for the next."""
        costs, guess = self._now, self._guess()
        probe_s = self.reading_s + costs.draft(guess) + costs.target(guess + 1) - costs.target(1)
        self._pauses.begin(self._pause_key(), probe_s, costs.target(1))
        return 0

    def _probe(self) -> int:
        """Look again, unless that would mean to read a long prompt first."""
        self._is_probing = self._is_started or self._pays_to_start(_PROBE_SHARE)
        return self._guess() if self._is_probing else 0

    def draft_s(self, num_candidates: float) -> float:
        """Return the seconds that drafting so many candidates takes now; 0 before it was measured."""
        return self._now.draft(num_candidates)

    def _knows_costs(self) -> bool:
        return self._now.draft.is_known and 1 in self._now.target_s

    def _pays(self) -> bool:
        return self.model_rate() * self._now.target(1) >= _GAIN_TO_DRAFT + self._gain_of_rows()

    def _is_doubtful(self) -> bool:
        """Whether a small gain rests on plain passes of long ago, or on a few."""
        return self._now.is_plain_due() and self.model_rate() * self._now.target(1) < _SURE_GAIN

    def _gain_of_rows(self) -> float:
        return self._gain_per_doubling * size_class(self._num_rows)

    def _pays_to_start(self, share: float) -> bool:
        """Whether reading the prompt with the draft costs at most `share` of what it can win in this call."""
        costs = self._now
        token_s = costs.draft_token_s
        if token_s is None:
            if costs.target_token_s is None:
                return True
            token_s = costs.target_token_s * self._size_ratio
        plain_s = self._num_left * costs.target(1) if 1 in costs.target_s else None
        if plain_s is None:
            return True
        gain = 1.0 - 1.0 / max(self.model_rate() * costs.target(1), 1e-9) if self._knows_costs() else 0.5
        return token_s * self._num_prompt_tokens <= share * max(gain, 0.5 if share < 1.0 else 0.0) * plain_s

    # ------------------------------------------------------------------ rates

    def model_rate(self) -> float:
        """Return the best expected output tokens per second and row with the draft model, before a round."""
        return self._best_rate(0.0, 0, 1.0)

    def _best_rate(self, expected: float, length: int, reach: float) -> float:
        """Return the best expected tokens per second over lengths from `length + 1` on.

        Args:
            expected: candidates expected to be accepted so far, per row.
            length: candidates drafted so far.
            reach: probability that all of them are accepted.
        """
        costs, mean = self._now, self._calibration.mean
        best = 0.0
        for size in range(length + 1, min(length + _LOOK_AHEAD, self.most) + 1):
            reach *= mean
            expected += reach
            best = max(best, (1.0 + expected) / (costs.draft(size) + costs.target(size + 1)))
        return best

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
        expected, reaches = float(num_rows), [1.0] * num_rows
        for size in range(1, max(map(len, rates_of_rows), default=0) + 1):
            for row, rates in enumerate(rates_of_rows):
                reaches[row] *= rates[size - 1] if size <= len(rates) else 0.0
            expected += sum(reaches)
            rate = expected / num_rows / costs.target(size + 1)
            if rate > best_rate:
                best, best_rate = size, rate
        return best, best_rate

    def go_on(self, row: int, proposals: Sequence[Proposal]) -> bool:
        """Say whether a row should draft one more candidate."""
        reach = self._reach.get(row, 1.0)
        confidence = proposals[-1].confidence
        if self.fixed is not None:
            reach *= confidence
            self._reach[row] = reach
            return reach >= self.min_confidence
        reach *= self._calibration.rate(confidence)
        self._reach[row] = reach
        if reach < self.min_confidence:
            return False
        costs = self._now
        if not self._knows_costs():
            return True
        length = len(proposals)
        expected = self._expected(proposals)
        now = (1.0 + expected) / (costs.draft(length) + costs.target(length + 1))
        return self._best_rate(expected, length, reach) > now

    def _expected(self, proposals: Sequence[Proposal]) -> float:
        reach, expected = 1.0, 0.0
        for proposal in proposals:
            reach *= self._calibration.rate(proposal.confidence)
            expected += reach
        return expected

    # ------------------------------------------------------------------ after a round

    def learn_prefill(self, seconds: float) -> None:
        """Learn from the target's own pass over the prompt."""
        if self._num_prompt_tokens > 1:
            costs = self._now
            costs.target_token_s = smooth(costs.target_token_s, seconds / self._num_prompt_tokens)

    def learn_round(
        self,
        num_candidates: int,
        draft_s: float,
        target_s: float,
        outcomes: Sequence[tuple[Sequence[Proposal], int]],
        draft_prefill_s: float = 0.0,
        is_first: bool = False,
        num_drafted: float | None = None,
    ) -> None:
        """Learn from a round.

        Args:
            num_candidates: of the longest row; the target pass had one token more per row.
            draft_s: seconds of drafting, without reading the prompt; 0 where the draft model was not asked.
            target_s: seconds of the target pass.
            outcomes: each row's proposals by the draft model and how many were accepted.
            draft_prefill_s: seconds of reading the prompt with the draft, 0 where it was read before.
            is_first: the target pass read the prompt too, so it says nothing about blocks.
            num_drafted: candidates that `draft_s` paid for, per row; None for those of the longest row.
        """
        costs = self._now
        if not is_first:
            costs.learn_target(num_candidates + 1, target_s)
        if draft_prefill_s > 0.0:
            self._is_started = True
            costs.draft_token_s = smooth(costs.draft_token_s, draft_prefill_s / max(self._num_prompt_tokens, 1))
        if num_drafted is None:
            num_drafted = max((len(proposals) for proposals, _ in outcomes), default=0)
        if num_drafted and draft_s > 0.0:
            costs.draft.learn(num_drafted, draft_s)
        for proposals, num_accepted in outcomes:
            self._calibration.learn_row(proposals, num_accepted)
        if self._is_probing and num_drafted:
            self._is_probing = False
            self._pauses.end(self._pause_key(), self._pays())
        self._num_left = max(self._num_left - 1, 1)
