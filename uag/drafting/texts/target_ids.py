"""A known text as target ids, from any place on, as they continue the output.

If the output stops in the middle of a word of the text, or replaces one, the ids of the whole text are not what the
target writes next. So the text is encoded anew behind the written ids, by an `AlignmentWindow` that reads a bounded
piece at a time; its ids are reused while the output follows them.
"""

from bisect import bisect_right
from collections.abc import Sequence

from uag.adapters import AlignmentWindow
from uag.drafting.texts.known_text import KnownText

_PIECE = 512
"""Bytes of the text encoded at once. More bytes take longer after each difference; fewer are encoded more often."""


class TargetIds:
    """The target ids of a known text for one row.

    Args:
        known: the text.
    """

    def __init__(self, known: KnownText) -> None:
        self._known = known
        self._window: AlignmentWindow | None = None
        self._start = self._end = 0  # what the window has read of the text
        self._is_stuck = False  # the tokenizer cannot represent what comes next

    def ids(self, place: int, written: Sequence[int], num: int) -> list[int]:
        """Return up to `num` ids of the text from a place on.

        Args:
            place: a symbol of the text.
            written: the last ids in front of it.
            num: maximum number of ids; near the end of the text there are fewer.
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
        """Return how many ids of the window cannot change: all of them once the whole text was read."""
        return len(window.ids) if self._end == len(self._known) else window.num_settled

    def _index(self, window: AlignmentWindow, place: int) -> int | None:
        """Return the index of the id in the window that begins at a place; None if none does."""
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
