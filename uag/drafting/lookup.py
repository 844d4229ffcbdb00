"""Prompt lookup: candidates without a model, from n-grams of the prompt and the output, in target ids."""

from collections.abc import Sequence

from uag.drafting.drafter import Ask
from uag.drafting.ranked import AcceptanceRates, Evidence, FreeSource

_NUM_SYMBOLS = 0x110000
_PRIORS = (0.15, 0.35, 0.55, 0.7)
"""Initial acceptance rates after a match of 1, 2, 3 or at least 4 ids."""


class PromptLookup(FreeSource):
    """Proposes the ids that followed the last few ids when they occurred before."""

    strategy = "prompt-lookup"
    source = "prompt"
    max_proposed = 16

    def __init__(self) -> None:
        super().__init__(AcceptanceRates({self.source: _PRIORS}))
        self._rows: list[str] = []  # each id as the character with its number, so that searches run in C

    def start(self, prompts: Sequence[Sequence[int]], source_ids: Sequence[Sequence[int]] | None = None) -> None:
        """Start new sequences. An encoder's source text is searched too, because the decoder may copy it."""
        sources = source_ids if source_ids is not None else [()] * len(prompts)
        self._rows = [_symbols([*source, *prompt]) for source, prompt in zip(sources, prompts, strict=True)]

    def _candidates(self, row: int, num: int, ask: Ask) -> tuple[list[int], list[Evidence]]:  # noqa: ARG002
        length, start = _longest_match(self._rows[row])
        ids = [ord(symbol) for symbol in self._rows[row][start : start + num]] if length else []
        return ids, [(self.source, length - 1)] * len(ids)

    def _written(self, row: int, output_ids: Sequence[int], num_right: int) -> None:  # noqa: ARG002
        self._rows[row] += _symbols(output_ids)

    def release(self) -> None:
        """Drop all sequences."""
        super().release()
        self._rows = []


def _symbols(ids: Sequence[int]) -> str:
    """Return ids as symbols. An id below 0, which some models use for images, becomes one that no vocabulary has."""
    return "".join(chr(token_id % _NUM_SYMBOLS) for token_id in ids)


def _longest_match(text: str) -> tuple[int, int]:
    """Return how many of the last symbols occurred before, and the index after their latest occurrence.

    >>> _longest_match("abcdabcabc")
    (3, 7)
    """
    for length in range(min(len(_PRIORS), len(text) - 1), 0, -1):
        start = text.rfind(text[-length:], 0, len(text) - 1)
        if start >= 0:
            return length, start + length
    return 0, 0
