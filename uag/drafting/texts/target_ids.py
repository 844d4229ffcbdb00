"""Encodes a known text from any position as the target ids that continue the output.

If the output stops in the middle of a word of the text, or replaces one, the ids of the whole text are not what the
target writes next. So the text is re-encoded after the written ids, by an `AlignmentWindow` that reads a bounded piece
at a time; its ids are reused while the output follows them.
"""

from bisect import bisect_right
from collections.abc import Sequence

from uag.adapters import AlignmentWindow
from uag.drafting.texts.known_text import KnownText

_PIECE = 512
"""Bytes of text encoded at once. Increase to encode less often; decrease to take less time after each difference."""


class TargetIds:
    """The target ids of a known text for one row.

    Args:
        known: the text.
    """

    def __init__(self, known: KnownText) -> None:
        self._known = known
        self._window: AlignmentWindow | None = None
        self._start = self._end = 0  # the part of the text that the window has read
        self._is_stuck = False  # whether the tokenizer cannot represent the text after `_end`

    def ids(self, place: int, written: Sequence[int], num: int) -> list[int]:
        """Return up to `num` ids of the text from a symbol on.

        Args:
            place: index of the symbol in the text.
            written: the last ids before it.
            num: maximum number of ids; there are fewer near the end of the text.
        """
        known = self._known
        if known.adapter is None:
            return [ord(symbol) for symbol in known.symbols[place : place + num]]
        first = None if self._window is None else self._index(self._window, place)
        if self._window is None or first is None:
            self._window = AlignmentWindow(known.adapter, written)
            self._start, self._end, self._is_stuck, first = place, place, False, 0
        window = self._window
        while self._num_usable(window) - first < num and self._end < len(known) and not self._is_stuck:
            self._read(window)
        return window.ids[first : min(first + num, self._num_usable(window))]

    def _num_usable(self, window: AlignmentWindow) -> int:
        """Return how many ids of the window are final: all of them once the whole text was read."""
        return len(window.ids) if self._end == len(self._known) else window.num_settled

    def _index(self, window: AlignmentWindow, place: int) -> int | None:
        """Return the index of the window's id that begins at a symbol, or None."""
        if place == self._start:
            return 0
        index = bisect_right(window.byte_ends, place - self._start, hi=self._num_usable(window))
        return index if index and window.byte_ends[index - 1] == place - self._start else None

    def _read(self, window: AlignmentWindow) -> None:
        """Append the next piece of the text to the window."""
        start, self._end = self._end, min(self._end + _PIECE, len(self._known))
        num_before = window.num_settled
        window.append(self._known.symbols[start : self._end].encode("latin-1"))
        self._is_stuck = window.num_settled == num_before
