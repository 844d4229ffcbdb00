"""How far to draft for an engine that says nothing of its speed.

The engine's step is the time between two of its calls for candidates. With that, with what drafting took and with what
was accepted, the lookahead of the decoding loop finds the number of candidates that makes most output tokens per
second: many for a few requests, none where drafting for all of them takes longer than it saves.
"""

from collections.abc import Sequence

from uag.lookahead import Lookahead, Round, RowOutcome


class Pace:
    """Learns an engine's speed from its calls.

    Args:
        most: candidates that the engine takes for a request at most.
        min_confidence: go by this instead of the clock: a request is drafted further while the probability that all its
            candidates are accepted is at least this.

    Attributes:
        outcomes: of the last round; told before `plan`, which learns from them.
    """

    def __init__(self, most: int, min_confidence: float | None = None) -> None:
        self.lookahead = Lookahead(most=most, min_confidence=min_confidence or 0.0)
        self._has_clock = min_confidence is None
        self.outcomes: list[RowOutcome] = []
        self._sizes: list[int] = []
        self._lengths: list[int] = []
        self._ended = self._draft_s = 0.0
        self._began_rows = False

    @property
    def has_drafted(self) -> bool:
        """Whether the last round had candidates, so that there are outcomes to be told."""
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
        if not self._has_clock:
            self.lookahead.learn_round(Round(0, 0.0, 0.0, self.outcomes, is_first=True))
        elif self._lengths:
            self._learn(sizes, now - self._ended)
        self.outcomes = []
        limit = self.lookahead.plan(num_requests)
        return limit if self._has_clock else self.lookahead.most

    def _learn(self, sizes: Sequence[int], step_s: float) -> None:
        """Learn from a step that took `step_s` seconds."""
        # Only a step that served the same requests, and read no prompt, says what a pass over candidates costs.
        is_same = len(sizes) == len(self._sizes) > 0 and all(
            before < size <= before + length + 1
            for before, size, length in zip(self._sizes, sizes, self._lengths, strict=True)
        )
        mean = sum(self._lengths) / len(self._lengths)
        num_drafted = mean or None  # none in a round that was drafted for: the lookahead counts what that cost
        if self._began_rows:
            # The draft read prompts, too: what that took is kept apart, and the next round says what drafting costs.
            draft_s = self.lookahead.prices.draft_s + mean * self.lookahead.prices.draft_candidate_s
            self.lookahead.reading_s = max(self._draft_s - draft_s, 0.0)
            num_drafted = 0.0
        self.lookahead.learn_round(
            Round(round(mean), self._draft_s, step_s, self.outcomes, is_first=not is_same, num_drafted=num_drafted)
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
