"""A growing text and its ids, re-encoded only from a boundary that cannot change."""

from __future__ import annotations

from dataclasses import dataclass

from uag.adapters import utf8
from uag.adapters.base import Place, TokenizerAdapter

_CHUNK = 96


@dataclass(frozen=True)
class _Anchor:
    """A place from which the text can be re-encoded alone.

    Attributes:
        offset: In the text's bytes.
        proof_end: End of the bytes that make the place safe; a cut before it takes the anchor away.
        num_ids: How many ids stand before it.
        place: How the text that follows is encoded.
    """

    offset: int
    proof_end: int
    num_ids: int
    place: Place


class AlignmentWindow:
    """The ids of a text that grows and shrinks at its end.

    After any sequence of calls `ids` are those of the whole text encoded at once; a call costs as much as the text
    since the last safe place.

    Attributes:
        adapter: Whose ids these are.
        ids: The ids, control tokens included.
        byte_ends: [len(ids)]: where each id's bytes end in the text. Where text is lost, an approximation.
    """

    def __init__(self, adapter: TokenizerAdapter, at_start: bool = False) -> None:
        self.adapter = adapter
        self.ids: list[int] = []
        self.byte_ends: list[int] = []
        self._data = bytearray()
        self._anchors = [_Anchor(0, 0, 0, Place.START if at_start else Place.CONTINUATION)]

    @property
    def data(self) -> bytes:
        """The text's bytes."""
        return bytes(self._data)

    @property
    def num_bytes(self) -> int:
        """How many bytes the text has."""
        return len(self._data)

    def append(self, data: bytes) -> int:
        """Add bytes at the end; returns how many leading ids stayed as they were."""
        if not data:
            return len(self.ids)
        self._data += data
        return self._encode_from_last_anchor()

    def cut(self, num_bytes: int) -> int:
        """Keep the first `num_bytes` bytes, and control tokens that stand before or at that place.

        Returns:
            How many leading ids stayed as they were.
        """
        if not 0 <= num_bytes <= len(self._data):
            raise ValueError(f"cut to {num_bytes} bytes of a text of {len(self._data)}; give 0 to {len(self._data)}")
        if num_bytes == len(self._data):
            return len(self.ids)
        while self._anchors[-1].proof_end > num_bytes:
            self._anchors.pop()
        del self._data[num_bytes:]
        return self._encode_from_last_anchor()

    def append_control(self, token_id: int) -> int:
        """Add a control token: the text before it is finished, what follows starts behind a control token.

        Returns:
            How many leading ids stayed as they were: all.
        """
        num_ids = len(self.ids)
        self.ids.append(token_id)
        self.byte_ends.append(len(self._data))
        end = len(self._data)
        self._anchors.append(_Anchor(end, end, len(self.ids), Place.AFTER_CONTROL))
        return num_ids

    def _encode_from_last_anchor(self) -> int:
        anchor = self._anchors[-1]
        ids, ends = self._encode(anchor)
        old = self.ids[anchor.num_ids :]
        same = next((n for n, (a, b) in enumerate(zip(old, ids, strict=False)) if a != b), min(len(old), len(ids)))
        self.ids[anchor.num_ids :] = ids
        self.byte_ends[anchor.num_ids :] = ends
        return anchor.num_ids + same

    def _encode(self, anchor: _Anchor) -> tuple[list[int], list[int]]:
        """Encode the text behind an anchor, part by part, and set an anchor between parts."""
        parts, proof_ends = self._parts(anchor.offset)
        prefix = self.adapter.prefix(parts[0], anchor.place) if parts else b""
        rows = self.adapter.encode_continuations([prefix + part if n == 0 else part for n, part in enumerate(parts)])
        ids: list[int] = []
        ends: list[int] = []
        offset = anchor.offset
        for number, (part, row) in enumerate(zip(parts, rows, strict=True)):
            if number:
                place = _Anchor(offset, proof_ends[number - 1], anchor.num_ids + len(ids), Place.CONTINUATION)
                self._anchors.append(place)
            ends += self._ends(row, part, offset, prefix if number == 0 else b"")
            ids += row
            offset += len(part)
        return ids, ends

    def _parts(self, offset: int) -> tuple[list[bytes], list[int]]:
        text = utf8.decode(bytes(self._data[offset:]))
        if not text:
            return [], []
        places = list(self.adapter.split_offsets(text))
        parts: list[bytes] = []
        proof_ends: list[int] = []
        start, end = 0, offset
        for number, (place, proof_end) in enumerate(places):
            is_last = number == len(places) - 1
            if is_last or place - start >= _CHUNK:
                parts.append(utf8.encode(text[start:place]))
                end += len(parts[-1])
                proof_ends.append(end + len(utf8.encode(text[place:proof_end])))
                start = place
        parts.append(utf8.encode(text[start:]))
        return parts, proof_ends

    def _ends(self, ids: list[int], part: bytes, offset: int, prefix: bytes) -> list[int]:
        table = self.adapter.token_bytes
        end = offset - len(prefix)
        last = offset + len(part)
        ends: list[int] = []
        for token_id in ids:
            end += len(table[token_id] or b"") if token_id < len(table) else 0
            ends.append(min(max(end, offset), last))
        if ends:
            ends[-1] = last
        return ends
