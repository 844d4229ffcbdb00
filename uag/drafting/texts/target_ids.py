"""A known text as target ids, from any place on, as they continue what was written.

If the output stops in the middle of a word of the text, or replaces one, the ids of the whole text are not what the
target writes next. So each join starts an `AlignmentWindow` behind the written ids, which reads the text a bounded
piece at a time; its ids are reused while the output follows them.
"""

from bisect import bisect_right
from collections.abc import Sequence

from uag.adapters import AlignmentWindow, Place, TokenizerAdapter
from uag.drafting.texts.known_text import Known
from uag.drafting.texts.renames import Renames

_PIECE = 512
"""Bytes of the text encoded at once. More bytes take longer at each join; fewer are encoded more often."""


class Spelling:
    """What ids are as symbols of a `Known` text, and back.

    Args:
        adapter: the target's tokenizer; None where symbols are ids themselves.
    """

    def __init__(self, adapter: TokenizerAdapter | None) -> None:
        self.adapter = adapter

    def symbols(self, ids: Sequence[int]) -> str:
        """Return what some ids add to the output; control tokens add no bytes."""
        if self.adapter is None:
            return "".join(map(chr, ids))
        return b"".join(filter(None, self._bytes(ids))).decode("latin-1")

    def _bytes(self, ids: Sequence[int]) -> list[bytes | None]:
        table = () if self.adapter is None else self.adapter.token_bytes
        return [table[i] if 0 <= i < len(table) else None for i in ids]

    def place(self, prompt: Sequence[int]) -> Place:
        """Say where a text behind a prompt stands."""
        known = [data is not None for data in self._bytes(prompt)]
        if known and known[-1]:
            return Place.CONTINUATION
        return Place.AFTER_CONTROL if any(known) else Place.START

    def prepared(self, text: str, place: Place) -> bytes:
        """Return a text's bytes as the target would write them there: with its dummy space, without what it loses."""
        adapter, data = self.adapter, text.encode("utf-8", "replace")
        if adapter is None:
            return data
        data = adapter.prefix(data, place) + data
        return data if adapter.is_exact else adapter.join(adapter.encode_continuation(data)) or data


class Joined:
    """The target ids of a known text for one row, from any place on.

    Args:
        known: the text.
        spelling: how ids and symbols correspond.
        renames: words that the output spells differently from the text.
    """

    def __init__(self, known: Known, spelling: Spelling, renames: Renames | None = None) -> None:
        self._known = known
        self._renames = Renames() if renames is None else renames
        self._spelling = spelling
        self._window: AlignmentWindow | None = None
        self._encoded_with: dict[str, str] = {}
        self._places: list[int] = []  # of each byte of the window, in the text
        self._num_read = 0  # symbols of the text up to the window's end
        self._is_stuck = False  # the tokenizer cannot represent what comes next

    def ids(self, place: int, written: Sequence[int], num: int) -> list[int]:
        """Return up to `num` ids of the text from a place on.

        Args:
            place: a symbol of the text.
            written: the last ids in front of it, which decide how the text is encoded behind them.
            num: maximum number of ids; near the end of the text there are fewer.
        """
        adapter = self._spelling.adapter
        if adapter is None:
            return [ord(symbol) for symbol in self._known.symbols[place : place + num]]
        if place >= len(self._known):
            return []
        first = self._index(place) if self._encoded_with == self._renames.new else None
        if self._window is None or first is None:
            self._window = AlignmentWindow(adapter, written)
            self._encoded_with = dict(self._renames.new)
            self._places, self._num_read, self._is_stuck, first = [place], place, False, 0
        while self._num_usable() - first < num and self._num_read < len(self._known) and not self._is_stuck:
            self._read(self._window)
        return self._window.ids[first : min(first + num, self._num_usable())]

    def is_end(self, place: int, ids: Sequence[int]) -> bool:
        """Whether the text ends behind ids that `ids` returned for a place."""
        if self._spelling.adapter is None or not ids:
            return place + len(ids) == len(self._known)
        index = self._index(place)
        return index is not None and self._end(index + len(ids)) == len(self._known)

    def _num_usable(self) -> int:
        """Return how many ids of the window cannot change: all of them once the whole text was read."""
        if self._window is None:
            return 0
        return len(self._window.ids) if self._num_read == len(self._known) else self._window.num_settled

    def _end(self, num_ids: int) -> int:
        """Return the place in the text behind the first ids of the window."""
        return self._places[self._window.byte_ends[num_ids - 1] if self._window is not None and num_ids else 0]

    def _index(self, place: int) -> int | None:
        """Return the index of the id in the window that begins at a place; None if none does."""
        index = bisect_right(range(self._num_usable()), place, key=self._end) - 1
        return index if index >= 0 and self._end(index) == place else None

    def _read(self, window: AlignmentWindow) -> None:
        """Append the next piece of the text to the window; pieces end at the end of a word, so no name is cut."""
        end = self._known.word_end(min(self._num_read + _PIECE, len(self._known)))
        piece, places = self._renames.apply(self._known.symbols, self._num_read, end)
        num_before = window.num_settled
        window.append(piece.encode("latin-1"))
        self._places += places[1:]
        self._num_read = end
        self._is_stuck = window.num_settled == num_before
