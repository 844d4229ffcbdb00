"""A growing text and its ids, re-encoded only from a boundary that cannot change."""

from dataclasses import dataclass
from itertools import accumulate, pairwise

from uag.adapters import utf8
from uag.adapters.base import Place, TokenizerAdapter

# The least characters between two places that are remembered. Higher: fewer places to keep and fewer, longer texts to
# encode at once; a cut re-encodes more.
_CHUNK = 96


@dataclass(frozen=True)
class _Anchor:
    """A place from which the text can be re-encoded alone.

    Attributes:
        offset: In the text's bytes.
        proof_end: End of the character that makes the place safe; a cut before it takes the anchor away.
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
        """Add bytes at the end.

        Returns:
            How many leading ids stayed as they were.
        """
        if not data:
            return len(self.ids)
        self._data += data
        return self._encode_from_last_anchor()

    def cut(self, num_bytes: int) -> int:
        """Keep the first `num_bytes` bytes, and control tokens that stand before or at that place.

        Args:
            num_bytes: From 0 to the length of the text; it may lie inside a character.

        Returns:
            How many leading ids stayed as they were.

        Raises:
            ValueError: A place outside the text.
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
        """Encode the text behind the last anchor, and set anchors at safe places in it.

        Returns:
            How many leading ids stayed as they were.
        """
        first = self._anchors[-1]
        texts = self._parts(first.offset)
        parts = [utf8.encode(text) for text in texts]
        prefix = self.adapter.prefix(parts[0], first.place)
        rows = self.adapter.encode_continuations([prefix + parts[0], *parts[1:]])
        old = self.ids[first.num_ids :]
        del self.ids[first.num_ids :], self.byte_ends[first.num_ids :]
        offset = first.offset
        for number, (part, ids) in enumerate(zip(parts, rows, strict=True)):
            if number:
                proof_end = offset + len(utf8.encode(texts[number][0]))
                self._anchors.append(_Anchor(offset, proof_end, len(self.ids), Place.CONTINUATION))
            self.byte_ends += self._ends(ids, offset, offset + len(part), len(prefix) if number == 0 else 0)
            self.ids += ids
            offset += len(part)
        new = self.ids[first.num_ids :]
        same = next((n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
        return first.num_ids + same

    def _parts(self, offset: int) -> list[str]:
        """Cut the text behind a byte offset at its last safe place, and at others that are far enough apart."""
        text = utf8.decode(bytes(self._data[offset:]))
        places = list(self.adapter.split_offsets(text))
        chosen = [0]
        for place in places:
            if place == places[-1] or place - chosen[-1] >= _CHUNK:
                chosen.append(place)
        return [text[start:end] for start, end in pairwise([*chosen, len(text)])]

    def _ends(self, ids: list[int], start: int, end: int, num_prefix: int) -> list[int]:
        """Give the byte offset behind each id of a part of the text, from `start` to `end`."""
        table = self.adapter.token_bytes
        lengths = (len(table[token_id] or b"") if token_id < len(table) else 0 for token_id in ids)
        ends = [min(max(reached, start), end) for reached in accumulate(lengths, initial=start - num_prefix)][1:]
        return [*ends[:-1], end] if ends else []
