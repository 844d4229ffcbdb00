"""Encodes a known text from any position as the target ids that continue the output.

If the output stops in the middle of a word of the text, or replaces one, the ids of the whole text are not what the
target writes next. So a bounded piece of the text is encoded after the written ids; its ids are reused while the output
follows them.
"""

from bisect import bisect_right
from collections.abc import Sequence

from uag.adapters import TokenizerAdapter, encode_after
from uag.drafting.texts.known_text import KnownText

_PIECE = 512
"""Bytes of text encoded at once. Increase to encode less often; decrease to take less time after each difference."""

_NUM_UNSETTLED_BYTES = 32
"""Bytes at the end of a piece whose ids are not used, because the text after them may change them. Increase to cover
longer words; decrease to encode less often."""


class TargetIds:
    """The target ids of a known text for one row.

    Args:
        known: the text.
    """

    def __init__(self, known: KnownText) -> None:
        self._known = known
        self._start = 0  # where the encoded piece begins
        self._ids: list[int] = []
        self._ends: list[int] = []  # where each of its ids ends in the text
        self._is_last = False  # whether no id can follow them

    def ids(self, place: int, written: Sequence[int], num: int) -> list[int]:
        """Return up to `num` ids of the text from a symbol on.

        Args:
            place: index of the symbol in the text.
            written: the last ids before it.
            num: maximum number of ids; there are fewer near the end of the text.
        """
        adapter = self._known.adapter
        if adapter is None:
            return [ord(symbol) for symbol in self._known.symbols[place : place + num]]
        first = self._index(place)
        if first is None or (len(self._ids) - first < num and not self._is_last):
            self._encode(adapter, place, written)
            first = 0
        return self._ids[first : first + num]

    def _index(self, place: int) -> int | None:
        """Return the index of the encoded id that begins at a symbol, or None."""
        if place == self._start:
            return 0
        index = bisect_right(self._ends, place)
        return index if index and self._ends[index - 1] == place else None

    def _encode(self, adapter: TokenizerAdapter, place: int, written: Sequence[int]) -> None:
        """Encode the piece of the text from a symbol on."""
        known, end = self._known, min(place + _PIECE, len(self._known))
        ids, ends = encode_after(adapter, written, known.symbols[place:end].encode("latin-1"))
        is_whole = bool(ends) and ends[-1] == end - place  # otherwise the tokenizer cannot represent the rest
        self._is_last = end == len(known) or not is_whole
        num = len(ids) if self._is_last else bisect_right(ends, end - place - _NUM_UNSETTLED_BYTES)
        self._start, self._ids, self._ends = place, ids[:num], [place + offset for offset in ends[:num]]
