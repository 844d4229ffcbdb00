"""How far to draft for an engine that does not report its speed.

The time between two calls for candidates is the engine's step. From it, the drafting time and the accepted candidates,
the lookahead of the decoding loop finds the number of candidates with the most output tokens per second: many for a few
requests, none where drafting for all of them takes longer than it saves.
"""

from collections.abc import Sequence

from uag.lookahead import Lookahead, Round, RowOutcome


class Pace:
    """Learns an engine's speed from its calls.

    Args:
        most: the most candidates that the engine takes for a request.
        min_confidence: use this instead of the clock; see `Settings`.

    Attributes:
        outcomes: of the last round. The caller appends them before `plan`, which learns from them.
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
        """Whether the last round had candidates, so that there are outcomes to learn from."""
        return any(self._lengths)

    def interrupt(self) -> None:
        """Forget the last round: the time until the next one is not an engine's step."""
        self._sizes, self._lengths, self.outcomes = [], [], []

    def plan(self, sizes: Sequence[int], num_requests: int, now: float) -> int:
        """Learn from the step that has just ended, and return the most candidates to draft for each request.

        Args:
            sizes: number of ids of each request; empty if a request cannot take candidates now.
            num_requests: number of requests that can.
            now: when the engine called, in seconds.
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
        num_drafted = mean or None  # None counts the cost of a round in which the draft found no candidate
        if self._began_rows:
            # The draft also read prompts. Record that time separately; the next round measures drafting.
            draft_s = self.lookahead.prices.draft_s + mean * self.lookahead.prices.draft_candidate_s
            self.lookahead.reading_s = max(self._draft_s - draft_s, 0.0)
            num_drafted = 0.0
        self.lookahead.learn_round(
            Round(round(mean), self._draft_s, step_s, self.outcomes, is_first=not is_same, num_drafted=num_drafted)
        )

    def end(self, sizes: Sequence[int], lengths: Sequence[int], draft_s: float, now: float, began_rows: bool) -> None:
        """Record a round that drafted.

        Args:
            sizes: as in `plan`.
            lengths: number of candidates of each request that can take some.
            draft_s: seconds of drafting.
            now: when the candidates go to the engine, in seconds.
            began_rows: whether the draft read the prompts of new requests.
        """
        self._sizes, self._lengths = list(sizes), list(lengths)
        self._draft_s, self._ended, self._began_rows = draft_s, now, began_rows
