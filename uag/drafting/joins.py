"""A known text as target ids, from any place on, as they continue what was written.

A text has many encodings once it is cut: where the output stands in the middle of a word, or has replaced one, the ids
of the whole text are not what the target writes next. So the text is encoded anew at each join, together with the last
bytes in front of it, a bounded piece at a time, and the ids are remembered while they are followed.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from uag.adapters import AlignmentWindow, Place, TokenizerAdapter
from uag.drafting.places import Known
from uag.drafting.renames import Renames

_PIECE = 512
"""Bytes encoded at once: more take longer at each join, fewer are encoded more often."""

_HELD_BACK = 32
"""Bytes at a piece's end whose ids may change by what follows: fewer end more pieces in the middle of a word."""

_CONTEXT = 8
"""Ids in front of a join that are encoded with it: more see farther back, and take longer."""


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

    def context(self, ids: Sequence[int]) -> bytes:
        """Return the bytes of the last ids, those behind the last control token."""
        parts: list[bytes] = []
        for data in reversed(self._bytes(ids[-_CONTEXT:])):
            if data is None:
                break
            parts.append(data)
        return b"".join(reversed(parts))

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
    """The ids of one text for one row.

    Args:
        known: the text.
        spelling: how ids and symbols go together.
        renames: words that are written otherwise than they stand there.
    """

    def __init__(self, known: Known, spelling: Spelling, renames: Renames | None = None) -> None:
        self._known = known
        self._renames = Renames() if renames is None else renames
        self._spelling = spelling
        self._start = 0
        self._encoded_with: dict[str, str] = {}
        self._ids: list[int] = []
        self._ends: list[int] = []  # places in the text

    def ids(self, place: int, written: Sequence[int], num: int) -> list[int]:
        """Return up to `num` ids of the text from a place on.

        Args:
            place: a symbol of the text.
            written: the last ids in front of it; what they are decides how the text goes on.
            num: ids at most; near the end of the text there are fewer.
        """
        if self._spelling.adapter is None:
            return [ord(symbol) for symbol in self._known.symbols[place : place + num]]
        if place >= len(self._known):
            return []
        first = self._index(place)
        if self._encoded_with != self._renames.new:
            first = None
        if first is None:
            self._encode(place, written)
            first = 0
        while len(self._ids) - first < num and self._ends and self._ends[-1] < len(self._known):
            kept = self._ids[first:], self._ends[first:], place
            self._encode(kept[1][-1], kept[0] or written)
            if not self._ids:
                self._ids, self._ends, self._start = kept
                break
            self._ids, self._ends, self._start, first = kept[0] + self._ids, kept[1] + self._ends, place, 0
        return self._ids[first : first + num]

    def is_end(self, place: int, ids: Sequence[int]) -> bool:
        """Whether the text ends behind ids that `ids` returned for a place."""
        if self._spelling.adapter is None or not ids:
            return place + len(ids) == len(self._known)
        index = self._index(place)
        return index is not None and self._ends[index + len(ids) - 1] == len(self._known)

    def _index(self, place: int) -> int | None:
        """Return which of the remembered ids begins at a place; None where none does."""
        if place == self._start and self._ids:
            return 0
        index = bisect_right(self._ends, place)
        return index if 0 < index < len(self._ids) and self._ends[index - 1] == place else None

    def _encode(self, place: int, written: Sequence[int]) -> None:
        """Encode a piece of the text behind some ids."""
        adapter: Any = self._spelling.adapter
        end = min(place + _PIECE, len(self._known))
        written_so, places = self._renames.apply(self._known.symbols, place, end)
        self._encoded_with = dict(self._renames.new)
        piece = written_so.encode("latin-1")
        context = self._spelling.context(written)
        window = AlignmentWindow(adapter)
        window.append(context + piece)
        first = bisect_right(window.byte_ends, len(context)) if context else 0
        if context and (not first or window.byte_ends[first - 1] != len(context)):
            # A token of the whole would reach across the join, and the target did not write it.
            context, first = b"", 0
            window = AlignmentWindow(adapter)
            window.append(piece)
        last = len(piece) if end == len(self._known) else max(len(piece) - _HELD_BACK, 1)
        self._start, self._ids, self._ends = place, [], []
        for token_id, end in zip(window.ids[first:], window.byte_ends[first:], strict=True):
            size = end - len(context)
            if adapter.token_bytes[token_id] is None or (size > last and self._ids):
                break
            self._ids.append(token_id)
            self._ends.append(places[size])
