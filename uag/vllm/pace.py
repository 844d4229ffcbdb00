"""How far to draft for an engine that says nothing of its speed.

The engine's step is the time between two of its calls for candidates. With that, with what drafting took and with what
was accepted, the lookahead of the decoding loop finds the number of candidates that makes most output tokens per
second: many for a few requests, none where drafting for all of them takes longer than it saves.
"""

from __future__ import annotations

from collections.abc import Sequence

from uag.lookahead import Lookahead, smooth
from uag.proposal import Proposal

Outcome = tuple[Sequence[Proposal], int]
"""A row's proposals and how many of them were accepted."""


class Pace:
    """Learns an engine's speed from its calls.

    Args:
        most: candidates that the engine takes for a request at most.
        min_confidence: go by this instead of the clock: a request is drafted further while the probability that all its
            candidates are accepted is at least this.
    """

    def __init__(self, most: int, min_confidence: float | None = None) -> None:
        self.lookahead = Lookahead(most=most, min_confidence=min_confidence or 0.0, end_together=False)
        self._most = most
        self._has_clock = min_confidence is None
        self.outcomes: list[Outcome] = []
        self._sizes: list[int] = []
        self._lengths: list[int] = []
        self._ended = self._draft_s = 0.0
        self._began_rows = False

    @property
    def has_drafted(self) -> bool:
        """Whether the last round had candidates, whose fate is to be told as `outcomes` before the next `plan`."""
        return any(self._lengths)

    def interrupt(self) -> None:
        """Forget the last round: the time until the next one says nothing."""
        self._sizes, self._lengths, self.outcomes = [], [], []

    def plan(self, sizes: Sequence[int], num_requests: int, now: float) -> int:
        """Learn from the step that has just ended, and return the most candidates to draft for each request.

        Args:
            sizes: ids of each request so far; empty where some request cannot take candidates now.
            num_requests: that can.
            now: seconds, when the engine asked.
        """
        lengths = self._lengths
        # Only a step that served the same requests, and read no prompt, says what a pass over candidates costs.
        is_same = len(sizes) == len(self._sizes) > 0 and all(
            before < size <= before + length + 1
            for before, size, length in zip(self._sizes, sizes, lengths, strict=True)
        )
        if not self._has_clock:
            self.lookahead.learn_round(0, 0.0, 0.0, self.outcomes, is_first=True)
        elif lengths:
            self._learn(sum(lengths) / len(lengths), now - self._ended, is_same)
        self.outcomes = []
        limit = self.lookahead.plan(num_requests)
        return limit if self._has_clock else self._most

    def _learn(self, mean: float, step_s: float, is_same: bool) -> None:
        """Learn from a step over `mean` candidates for each request."""
        draft_s, num_drafted = self._draft_s, mean
        if self._began_rows:  # this took the reading of prompts, too, so the next round is measured instead
            reading_s = draft_s - self.lookahead.draft_s(mean)
            self.lookahead.reading_s = smooth(self.lookahead.reading_s or None, max(reading_s, 0.0))
            num_drafted = 0.0
        self.lookahead.learn_round(
            round(mean), draft_s, step_s, self.outcomes, is_first=not is_same, num_drafted=num_drafted
        )

    def end(self, sizes: Sequence[int], lengths: Sequence[int], draft_s: float, now: float, began_rows: bool) -> None:
        """Note what was drafted.

        Args:
            sizes: as in `plan`.
            lengths: candidates of each request that can take some.
            draft_s: seconds of drafting.
            now: seconds, when the candidates go to the engine.
            began_rows: whether the draft had to read the prompts of some requests.
        """
        self._sizes, self._lengths = list(sizes), list(lengths)
        self._draft_s, self._ended, self._began_rows = draft_s, now, began_rows
