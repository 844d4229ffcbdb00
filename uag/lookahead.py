"""How many tokens to draft: the number that maximises output tokens per second.

`expected output tokens / (draft passes + target pass at that length)` is compared over all lengths, since a marginal
rule stops too early where the target pass jumps. Costs are measured as the run goes and kept across calls; acceptance is
predicted from the draft's own confidence and calibrated by what was accepted so far. Where no length beats plain
decoding nothing is drafted, and a probe looks again, ever more rarely.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from uag.projection import Proposal

MAX_CANDIDATES = 32
_FIRST_GUESS = 5
_BINS = 10
_PRIOR = 4.0
_SMOOTHING = 0.15
_FIRST_PAUSE = 8
_LONGEST_PAUSE = 256
_GAIN_TO_DRAFT = 1.02
"""A draft must promise this much over plain decoding before it runs."""


@dataclass
class Calibration:
    """How often a candidate of some confidence was accepted, given that those before it were.

    Counts fade, so that the calibration follows the text.
    """

    accepted: list[float] = field(default_factory=lambda: [0.0] * _BINS)
    seen: list[float] = field(default_factory=lambda: [0.0] * _BINS)

    def rate(self, confidence: float) -> float:
        """Predict the acceptance of a candidate."""
        cell = min(int(confidence * _BINS), _BINS - 1)
        return (self.accepted[cell] + _PRIOR * confidence) / (self.seen[cell] + _PRIOR)

    def learn(self, confidence: float, was_accepted: bool) -> None:
        """Add one verified candidate."""
        cell = min(int(confidence * _BINS), _BINS - 1)
        self.accepted[cell] = 0.99 * self.accepted[cell] + was_accepted
        self.seen[cell] = 0.99 * self.seen[cell] + 1.0

    @property
    def mean(self) -> float:
        """Acceptance over all candidates seen, with a prior of 0.7."""
        return (sum(self.accepted) + _PRIOR * 0.7) / (sum(self.seen) + _PRIOR)


@dataclass
class Costs:
    """Seconds per pass, smoothed: target passes by number of tokens per row, and the draft work per candidate."""

    target_s: dict[int, float] = field(default_factory=dict)
    draft_s: float | None = None

    def learn_target(self, num_tokens: int, seconds: float) -> None:
        """Add a target pass of `num_tokens` tokens per row."""
        self.target_s[num_tokens] = _smooth(self.target_s.get(num_tokens), seconds)

    def learn_draft(self, num_candidates: float, seconds: float) -> None:
        """Add a round of drafting that gave `num_candidates` in its longest row."""
        self.draft_s = _smooth(self.draft_s, seconds / max(num_candidates, 1))

    def target(self, num_tokens: int) -> float:
        """Predict a target pass: between measured lengths by a straight line, beyond them by the last slope."""
        known = self.target_s
        if num_tokens in known:
            return known[num_tokens]
        below = max((n for n in known if n < num_tokens), default=None)
        above = min((n for n in known if n > num_tokens), default=None)
        if below is not None and above is not None:
            share = (num_tokens - below) / (above - below)
            return known[below] + share * (known[above] - known[below])
        if below is not None:
            return known[below] * (1.0 + 0.02 * (num_tokens - below))
        return known[above] if above is not None else 1.0


def _smooth(old: float | None, new: float) -> float:
    if old is None:
        return new
    # A single slow pass (another process, a cache miss) must not move the estimate far.
    new = min(new, 2.0 * old)
    return old + _SMOOTHING * (new - old)


@dataclass
class Lookahead:
    """Decides, round by round, how far to draft.

    Args:
        fixed: draft exactly this many tokens a round; None to decide by rate.
        min_confidence: stop a row when the product of its confidences falls below; 0 to leave that to the rate.
    """

    fixed: int | None = None
    min_confidence: float = 0.0
    costs: dict[int, Costs] = field(default_factory=dict)
    calibrations: dict[str, Calibration] = field(default_factory=dict)
    pauses: dict[int, int] = field(default_factory=dict)

    def begin(self, batch_size: int, mode: str) -> None:
        """Start a call; what was learnt for the same batch size and mode is used again."""
        self._now = self.costs.setdefault(batch_size, Costs())
        self._calibration = self.calibrations.setdefault(mode, Calibration())
        self._batch_size = batch_size
        self._wait = 0
        self._probing = False
        self._num_rounds = 0
        self._reach: dict[int, float] = {}

    def drafts_first(self) -> bool:
        """Whether to draft before the prompt's own pass: where the length is fixed or the costs are known."""
        return self.fixed is not None or (self._now.draft_s is not None and 1 in self._now.target_s)

    def plan(self) -> int:
        """Return the most candidates that this round may draft; 0 for plain decoding."""
        self._num_rounds += 1
        self._reach = {}
        if self.fixed is not None:
            return self.fixed
        costs = self._now
        if self._wait > 0:
            self._wait -= 1
            return 0
        if costs.draft_s is None:
            return _FIRST_GUESS
        if 1 not in costs.target_s:
            return 0
        if self._probing or self._best_rate(0.0, 0, 0) * costs.target(1) >= _GAIN_TO_DRAFT:
            return MAX_CANDIDATES
        pause = min(self.pauses.get(self._batch_size, _FIRST_PAUSE) * 2, _LONGEST_PAUSE)
        self.pauses[self._batch_size] = pause
        self._wait = pause
        self._probing = True
        return 0

    def _best_rate(self, expected: float, length: int, reach: float) -> float:
        """Return the best expected tokens per second over lengths from `length + 1` on.

        Args:
            expected: candidates expected to be accepted so far, per row.
            length: candidates drafted so far.
            reach: probability that all of them are accepted; with none drafted it is 1.
        """
        costs, mean = self._now, self._calibration.mean
        draft_s = costs.draft_s or 0.0
        if length == 0:
            reach = 1.0
        best = 0.0
        for size in range(length + 1, min(length + 9, MAX_CANDIDATES + 1)):
            reach *= mean
            expected += reach
            best = max(best, (1.0 + expected) / (size * draft_s + costs.target(size + 1)))
        return best

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
        if costs.draft_s is None or 1 not in costs.target_s:
            return len(proposals) < _FIRST_GUESS
        length = len(proposals)
        expected = self._expected(proposals)
        now = (1.0 + expected) / (length * costs.draft_s + costs.target(length + 1))
        return self._best_rate(expected, length, reach) > now

    def _expected(self, proposals: Sequence[Proposal]) -> float:
        reach, expected = 1.0, 0.0
        for proposal in proposals:
            reach *= self._calibration.rate(proposal.confidence)
            expected += reach
        return expected

    def learn_round(
        self, num_candidates: int, draft_s: float, target_s: float, outcomes: Sequence[tuple[Sequence[Proposal], int]]
    ) -> None:
        """Learn from a round.

        Args:
            num_candidates: of the longest row; the target pass had one token more per row.
            draft_s: seconds of drafting.
            target_s: seconds of the target pass.
            outcomes: each row's proposals and how many were accepted.
        """
        costs = self._now
        costs.learn_target(num_candidates + 1, target_s)
        if num_candidates:
            costs.learn_draft(num_candidates, draft_s)
        for proposals, num_accepted in outcomes:
            for position, proposal in enumerate(proposals[: num_accepted + 1]):
                self._calibration.learn(proposal.confidence, position < num_accepted)
        if self._probing and num_candidates:
            self._probing = False
            if self._best_rate(0.0, 0, 1.0) * costs.target(1) >= _GAIN_TO_DRAFT:
                self.pauses.pop(self._batch_size, None)
