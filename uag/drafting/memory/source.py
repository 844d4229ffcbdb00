"""The texts of earlier calls as a free source of candidates.

Each round looks up the longest stored n-gram at the end of a row, and what followed its latest occurrences. Where these
differ, the most frequent id is proposed; in sampling, the id that the shared noise selects if the next id is
distributed as in the occurrences (see `uag.sampling.noise`).
"""

from collections import Counter
from collections.abc import Sequence
from os.path import commonprefix
from typing import Any

from uag.drafting.drafter import Ask
from uag.drafting.memory.index import NUM_LAST
from uag.drafting.memory.memory import Memory
from uag.drafting.ranked import AcceptanceRates, Evidence, FreeSource
from uag.projection import FloatArray

_SINGLE, _UNANIMOUS, _DIVIDED = "single", "unanimous", "divided"

PRIORS = {
    _SINGLE: (0.4, 0.55, 0.75, 0.9, 0.95),
    _UNANIMOUS: (0.5, 0.75, 0.85, 0.93, 0.97),
    _DIVIDED: (0.3, 0.35, 0.45, 0.5, 0.5),
}
"""Initial acceptance rates: by the agreement of the occurrences, and by how many ids before the candidate match (2, 4,
8, 16, or at least 32)."""

_EVIDENCE: dict[str, list[Evidence]] = {
    agreement: [(agreement, min(max(num_shared.bit_length() - 2, 0), len(rates) - 1)) for num_shared in range(128)]
    for agreement, rates in PRIORS.items()
}
"""The evidence for a candidate, by agreement and number of shared ids."""


class MemorySource(FreeSource):
    """Candidates from a memory for the rows of one call, whose texts are stored in it when the call has succeeded."""

    strategy = source = "memory"
    max_proposed = 64

    def __init__(self, memory: Memory, rates: AcceptanceRates) -> None:
        super().__init__(rates)
        self._memory = memory
        self._prompts: Sequence[Sequence[int]] = ()
        self._last_ids: list[list[int]] = []

    def start(self, prompts: Sequence[Sequence[int]], source_ids: Any = None) -> None:  # noqa: ARG002
        """Start new sequences; an encoder's ids precede no output."""
        self._prompts = prompts
        self._last_ids = [list(prompt[-NUM_LAST:]) for prompt in prompts]

    def _candidates(self, row: int, num: int, ask: Ask) -> tuple[list[int], list[Evidence]]:
        num_shared, counts = self._memory.look_up(self._last_ids[row], num)
        ids: list[int] = []
        evidence: list[Evidence] = []
        while counts:
            place = len(ids)
            ids += commonprefix([each[place:] for each in counts])  # noqa: RUF071 - these are ids, not paths
            agreement = _UNANIMOUS if sum(counts.values()) > 1 else _SINGLE
            evidence += _EVIDENCE[agreement][num_shared + place : num_shared + len(ids)]
            place = len(ids)
            counts = {each: count for each, count in counts.items() if len(each) > place}
            votes = Counter[int]()
            for each, count in counts.items():
                votes[each[place]] += count
            if len(votes) > 1:
                ids.append(_most_likely(votes, ask.scoring(row, place).noise))
                evidence.append(_EVIDENCE[_DIVIDED][num_shared + place])
                counts = {each: count for each, count in counts.items() if each[place] == ids[-1]}
        return ids, evidence

    def _written(self, row: int, output_ids: Sequence[int], num_right: int) -> None:  # noqa: ARG002
        self._last_ids[row] = [*self._last_ids[row], *output_ids][-NUM_LAST:]

    def finish(self, outputs: Sequence[Sequence[int]]) -> None:
        """Store the texts of a call that has succeeded."""
        for prompt, output in zip(self._prompts, outputs, strict=True):
            # Some models use ids below 0 for images; the text after the last one is stored.
            start = max((place + 1 for place, token_id in enumerate(prompt) if token_id < 0), default=0)
            self._memory.add(prompt[start:], output)


def _most_likely(votes: Counter[int], noise: FloatArray | None) -> int:
    """Return the id that the target selects if the next id is distributed like these votes."""
    if noise is None:
        return max(votes, key=votes.__getitem__)
    return max(votes, key=lambda token_id: votes[token_id] / noise[min(token_id, len(noise) - 1)])
