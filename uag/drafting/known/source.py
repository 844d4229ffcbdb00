"""Candidates from known texts: what followed the last ids of a row in their latest, longest match."""

from abc import abstractmethod
from collections.abc import Sequence

from uag.drafting.drafter import Ask
from uag.drafting.known.index import NUM_LAST, KnownIds
from uag.drafting.known.memory import Memory
from uag.drafting.ranked import AcceptanceRates, FreeSource

PRIORS = (0.5, 0.1, 0.4, 0.6, 0.8, 0.93, 0.97, 0.98)
"""Initial acceptance rates of candidates before which 1, 2, 4, 8, 16, 32 or 64 ids match, or none (the first rate: a
guess without a match)."""


def level_of(num_matching: int) -> int:
    """Return the evidence for a candidate before which so many ids match: an index of `PRIORS`."""
    return min(num_matching.bit_length(), len(PRIORS) - 1)


class KnownSource(FreeSource):
    """Proposes what followed the last ids of each row, with `rates` by `level_of`; subclasses look it up."""

    def __init__(self, rates: AcceptanceRates | None = None) -> None:
        super().__init__(AcceptanceRates(PRIORS) if rates is None else rates)
        self._last_ids: list[list[int]] = []

    def start(self, prompts: Sequence[Sequence[int]], source_ids: Sequence[Sequence[int]] | None = None) -> None:  # noqa: ARG002
        self._last_ids = [list(prompt[-NUM_LAST:]) for prompt in prompts]

    @abstractmethod
    def _look_up(self, row: int, num: int) -> tuple[int, list[int]]:
        """Return how many of a row's last ids match, and up to `num` ids that followed."""

    def _candidates(self, row: int, num: int, ask: Ask) -> tuple[list[int], list[int]]:  # noqa: ARG002
        num_matching, ids = self._look_up(row, num)
        return ids, [level_of(num_matching + place) for place in range(len(ids))]

    def _written(self, row: int, output_ids: Sequence[int], num_right: int) -> None:  # noqa: ARG002
        self._last_ids[row] = [*self._last_ids[row], *output_ids][-NUM_LAST:]


class PromptLookup(KnownSource):
    """Searches the row's own prompt and output."""

    strategy, source = "prompt-lookup", "prompt"

    def start(self, prompts: Sequence[Sequence[int]], source_ids: Sequence[Sequence[int]] | None = None) -> None:
        """Start new sequences. An encoder's source text is searched too, because the decoder may copy it."""
        sources = source_ids if source_ids is not None else [()] * len(prompts)
        texts = [[*source, *prompt] for source, prompt in zip(sources, prompts, strict=True)]
        super().start(texts)
        self._known = [KnownIds() for _ in texts]
        for known, text in zip(self._known, texts, strict=True):
            known.append(text)

    def _look_up(self, row: int, num: int) -> tuple[int, list[int]]:
        return self._known[row].look_up(self._last_ids[row], num)

    def _written(self, row: int, output_ids: Sequence[int], num_right: int) -> None:
        super()._written(row, output_ids, num_right)
        self._known[row].append(output_ids)

    def release(self) -> None:
        super().release()
        self._known = []


class MemorySource(KnownSource):
    """Searches a memory, in which the texts of a call are stored when it has succeeded."""

    strategy = source = "memory"

    def __init__(self, memory: Memory, rates: AcceptanceRates | None = None) -> None:
        super().__init__(rates)
        self._memory = memory

    def start(self, prompts: Sequence[Sequence[int]], source_ids: Sequence[Sequence[int]] | None = None) -> None:
        super().start(prompts, source_ids)
        self._prompts = prompts

    def _look_up(self, row: int, num: int) -> tuple[int, list[int]]:
        return self._memory.look_up(self._last_ids[row], num)

    def finish(self, outputs: Sequence[Sequence[int]]) -> None:
        for prompt, output in zip(self._prompts, outputs, strict=True):
            # Some models use ids below 0 for images; the text after the last one is stored.
            start = max((place + 1 for place, token_id in enumerate(prompt) if token_id < 0), default=0)
            self._memory.add(prompt[start:], output)
