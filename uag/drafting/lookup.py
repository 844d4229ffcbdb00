"""Candidates without a model: n-grams of the prompt and the output, in target ids.

Where the last few ids of a row occurred before, what followed them then is proposed again (prompt lookup decoding). It
costs no draft pass, so it pays even with little acceptance; how much is learnt per match length as the run goes.
"""

from collections.abc import Sequence

from uag.drafting.drafter import Ask
from uag.drafting.ranked import FreeSource, choose
from uag.proposal import Proposal

_MAX_MATCH = 4
"""Ids compared at most: longer matches are surer, and each length costs a dictionary entry per id."""

_MAX_PROPOSED = 16
"""Candidates at most: more save target passes in long repetitions, and widen a pass that is rejected early."""

_PRIOR_WEIGHT = 4.0
"""Measured candidates that the guess below counts as."""

_PRIOR = (0.15, 0.35, 0.55, 0.7)
"""Acceptance expected of a candidate behind a match of 1, 2, 3 or more ids, before anything was learnt."""


class _History:
    """One row's ids and where each n-gram of them was last followed by something."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids: list[int] = []
        self._after: list[dict[tuple[int, ...], int]] = [{} for _ in range(_MAX_MATCH)]
        self.extend(ids)

    def extend(self, ids: Sequence[int]) -> None:
        """Append ids."""
        for token_id in ids:
            size = len(self.ids)
            for length in range(1, min(_MAX_MATCH, size) + 1):
                self._after[length - 1][tuple(self.ids[size - length :])] = size
            self.ids.append(token_id)

    def match(self) -> tuple[int, int]:
        """Return (length of the longest match of the last ids, position of what followed it); (0, 0) without one."""
        size = len(self.ids)
        for length in range(min(_MAX_MATCH, size), 0, -1):
            position = self._after[length - 1].get(tuple(self.ids[size - length :]))
            if position is not None:
                return length, position
        return 0, 0


class PromptLookup(FreeSource):
    """Proposes what followed the same ids before.

    Attributes:
        strategy: "prompt-lookup".
        source: "prompt".
    """

    strategy = "prompt-lookup"
    source = "prompt"

    def __init__(self) -> None:
        self._rows: list[_History] = []
        self._proposed: list[tuple[int, int]] = []
        self._accepted = [rate * _PRIOR_WEIGHT for rate in _PRIOR]
        self._seen = [_PRIOR_WEIGHT] * _MAX_MATCH

    def start(self, prompts: Sequence[Sequence[int]], source_ids: Sequence[Sequence[int]] | None = None) -> None:
        """Begin with new sequences; an encoder's source is no part of what the decoder writes, but may be copied."""
        sources = source_ids if source_ids is not None else [()] * len(prompts)
        self._rows = [_History([*source, *prompt]) for source, prompt in zip(sources, prompts, strict=True)]
        self._proposed = [(0, 0)] * len(self._rows)

    def look(self, row: int, room: int, ask: Ask) -> tuple[list[Proposal], float]:
        """Return the candidates of a row's longest match, as many as pay, and their expected tokens per second."""
        history, is_fixed = self._rows[row], ask.lookahead.fixed is not None
        length, position = history.match()
        self._proposed[row] = (length, 0)
        if not length or not room:
            return [], 0.0
        ids = history.ids[position : position + min(room, ask.limit if is_fixed else _MAX_PROPOSED)]
        return choose(ids, [self._accepted[length - 1] / self._seen[length - 1]] * len(ids), self.source, ask)

    def take(self, row: int, size: int) -> None:
        """Note how many candidates are offered."""
        self._proposed[row] = (self._proposed[row][0], size)

    def accept(self, row: int, num_accepted: int, output_ids: Sequence[int]) -> None:
        """Learn what the target wrote."""
        length, num_candidates = self._proposed[row]
        if num_candidates:
            cell = length - 1
            tried = min(num_accepted + 1, num_candidates)
            self._accepted[cell] = 0.98**tried * self._accepted[cell] + num_accepted
            self._seen[cell] = 0.98**tried * self._seen[cell] + tried
        self._proposed[row] = (0, 0)
        self._rows[row].extend(output_ids)

    def release(self) -> None:
        """Forget every sequence."""
        self._rows, self._proposed = [], []
