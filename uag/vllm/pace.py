"""Choose how many candidates to draft for an engine that does not report its speed.

The time between two calls is taken as the engine's step. From it, the drafting time and the accepted candidates, the
lookahead finds the number of candidates with the most output tokens per second: many for a few requests, none if
drafting for all of them takes longer than it saves.
"""

from collections.abc import Sequence

from uag.lookahead import Lookahead, Round, RowOutcome


class Pace:
    """Learns an engine's speed from its calls, or goes by `min_confidence`; `most` candidates per request are accepted.

    Attributes:
        outcomes: outcomes of the last round. The caller appends them before `plan`, which learns from them.
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
        """Whether the last round had candidates, whose outcomes can be learned from."""
        return any(self._lengths)

    def interrupt(self) -> None:
        """Forget the last round: the time until the next one is not an engine's step."""
        self._sizes, self._lengths, self.outcomes = [], [], []

    def plan(self, sizes: Sequence[int], num_requests: int, now: float) -> int:
        """Learn from the step that has just ended, and return the maximum number of candidates per request.

        Args:
            sizes: number of ids of each request; empty if a request cannot take candidates now.
            num_requests: number of requests that can take candidates.
            now: time of the engine's call, in seconds.
        """
        if not self._has_clock:
            self.lookahead.learn_round(Round(0, 0.0, 0.0, self.outcomes, is_special=True))
        elif self._lengths:
            self._learn(sizes, now - self._ended)
        self.outcomes = []
        limit = self.lookahead.plan(num_requests)
        return limit if self._has_clock else self.lookahead.most

    def _learn(self, sizes: Sequence[int], step_s: float) -> None:
        """Learn from a step that took `step_s` seconds."""
        # Only a step with the same requests that read no prompt shows the cost of a pass over candidates.
        is_same = len(sizes) == len(self._sizes) > 0 and all(
            before < size <= before + length + 1
            for before, size, length in zip(self._sizes, sizes, self._lengths, strict=True)
        )
        mean = sum(self._lengths) / len(self._lengths)
        num_drafted = mean or None  # None counts the cost of a round in which the draft found no candidate
        if self._began_rows:
            # The draft also read prompts. Record that time separately; the next round measures drafting.
            draft_s = self.lookahead.prices.draft_s + mean * self.lookahead.prices.draft_candidate_s
            self.lookahead.reading_s = max(self._draft_s - draft_s, 0.0)
            num_drafted = 0.0
        self.lookahead.learn_round(
            Round(round(mean), self._draft_s, step_s, self.outcomes, is_special=not is_same, num_drafted=num_drafted)
        )

    def end(self, sizes: Sequence[int], lengths: Sequence[int], draft_s: float, now: float, began_rows: bool) -> None:
        """Record a round.

        Args:
            sizes: as in `plan`.
            lengths: number of candidates of each request that can take candidates.
            draft_s: seconds of drafting.
            now: time at which the candidates are returned, in seconds.
            began_rows: whether the draft read the prompts of new requests.
        """
        self._sizes, self._lengths = list(sizes), list(lengths)
        self._draft_s, self._ended, self._began_rows = draft_s, now, began_rows
