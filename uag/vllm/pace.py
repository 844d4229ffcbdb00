"""Choose how many candidates to draft for an engine that does not report its speed."""

import math
from collections.abc import Sequence

from uag.lookahead import MAX_CANDIDATES, Lookahead, Round, RowOutcome


class Pace:
    """Learns an engine's speed from its calls, or goes by `min_confidence` alone.

    The time between two calls is taken as the engine's step, from which the lookahead finds the number of candidates.
    """

    def __init__(self, min_confidence: float | None = None) -> None:
        self.lookahead = Lookahead(None if min_confidence is None else MAX_CANDIDATES, min_confidence or 0.0)
        self._has_clock = min_confidence is None
        self._sizes: list[int] = []
        self._lengths: list[int] = []
        self._draft_s = self._ended = 0.0

    def interrupt(self) -> None:
        """Forget the last round: the time until the next one is not an engine's step."""
        self._lengths = []

    def plan(self, sizes: Sequence[int], num_requests: int, now: float, outcomes: Sequence[RowOutcome]) -> int:
        """Learn from the step that has just ended, and return the maximum number of candidates per request.

        `sizes` are the numbers of ids of each request; empty if a request cannot take candidates now.
        """
        if not self._has_clock:
            return self.lookahead.plan(num_requests)
        if self._lengths:
            # Only a step with the same requests that read no prompt shows the cost of a pass over candidates.
            is_same = len(sizes) == len(self._sizes) > 0 and all(
                before < size <= before + length + 1
                for before, size, length in zip(self._sizes, sizes, self._lengths, strict=True)
            )
            mean = math.ceil(sum(self._lengths) / len(self._lengths))
            step_s = now - self._ended
            self.lookahead.learn_round(Round(mean, self._draft_s, step_s, outcomes, is_special=not is_same))
        return self.lookahead.plan(num_requests)

    def end(self, sizes: Sequence[int], lengths: Sequence[int], draft_s: float, now: float) -> None:
        """Record a round: how many candidates each request got, the seconds of drafting, and when it ended."""
        self._sizes, self._lengths, self._draft_s, self._ended = list(sizes), list(lengths), draft_s, now
