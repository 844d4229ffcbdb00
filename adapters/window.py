"""Encode a growing text into target ids, re-encoding it from a boundary that no longer changes."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, takewhile

from uag.adapters.base import TokenizerAdapter

_NUM_CONTEXT_BYTES = 32
"""Bytes before the boundary that are encoded along with the text after it. Increase to split longer words as in the
whole text; decrease to encode less."""

_NUM_UNSETTLED_BYTES = 32
"""Bytes at the end of the text whose ids may still change. Increase to cover longer words; decrease to encode less at
each append."""


class AlignmentWindow:
    """Encodes a growing text that follows ids that are already written.

    The last ids of a text depend on what follows it, so an append re-encodes them; ids followed by
    `_NUM_UNSETTLED_BYTES` are settled and never change. The text after the last settled id is encoded together with the
    `_NUM_CONTEXT_BYTES` before it, so that a word that crosses this boundary is split as in the whole text. If a token
    would still cross the boundary, the text after it is encoded alone.

    The ids equal those of the whole text if the tokenizer encodes words one by one and no word is longer than these
    bytes. They may differ in longer words and with tokenizers that merge across words. The bytes of the ids are always
    those of the text, and only candidates depend on the ids, never the output.

    Args:
        adapter: The tokenizer to encode with.
        written_ids: The ids before the text; only the last ones are used.

    Attributes:
        ids: The ids of the text so far, up to the first position that the tokenizer cannot represent.
        byte_ends: [len(ids)], the byte offset at the end of each id, from the start of the text.
        num_settled: Number of leading ids that no longer change.

    >>> from transformers import ByT5Tokenizer
    >>> from uag.adapters import from_tokenizer
    >>> window = AlignmentWindow(from_tokenizer(ByT5Tokenizer()))
    >>> window.append(b"abc")
    >>> window.ids, window.byte_ends, window.num_settled
    ([100, 101, 102], [1, 2, 3], 0)
    """

    def __init__(self, adapter: TokenizerAdapter, written_ids: Sequence[int] = ()) -> None:
        self.adapter = adapter
        self.ids: list[int] = []
        self.byte_ends: list[int] = []
        self.num_settled = 0
        self._written_ids = list(written_ids[-_NUM_CONTEXT_BYTES:])
        self._unsettled = b""

    def append(self, data: bytes) -> None:
        """Add bytes to the end of the text."""
        text, context = self._unsettled + data, self._context()
        ids, ends = self._encode(context + text)
        first = bisect_right(ends, len(context)) if context else 0
        if context and (not first or ends[first - 1] != len(context)):  # a token crosses the boundary
            context, first = b"", 0
            ids, ends = self._encode(text)
        start = self.byte_ends[self.num_settled - 1] if self.num_settled else 0
        self.ids[self.num_settled :] = ids[first:]
        self.byte_ends[self.num_settled :] = [start + end - len(context) for end in ends[first:]]
        self.num_settled = bisect_right(self.byte_ends, start + len(text) - _NUM_UNSETTLED_BYTES)
        settled_end = self.byte_ends[self.num_settled - 1] if self.num_settled else 0
        self._unsettled = text[settled_end - start :]

    def _context(self) -> bytes:
        """Return the bytes before the boundary, back to a control token or to the start of a token."""
        settled = self.ids[max(self.num_settled - _NUM_CONTEXT_BYTES, 0) : self.num_settled]
        context = b""
        for token_id in reversed(self._written_ids + settled):
            piece = self.adapter.join([token_id])
            if piece is None or len(context) >= _NUM_CONTEXT_BYTES:
                break
            context = piece + context
        return context

    def _encode(self, text: bytes) -> tuple[list[int], list[int]]:
        """Return the ids of a text and the end offset of each, up to the first id whose bytes are not the text's."""
        ids = self.adapter.encode_continuation(text)
        pieces = [self.adapter.join([token_id]) or b"" for token_id in ids]
        ends = list(accumulate(map(len, pieces)))
        matches = (piece and text.endswith(piece, 0, end) for piece, end in zip(pieces, ends, strict=True))
        num_matching = len(list(takewhile(bool, matches)))
        return ids[:num_matching], ends[:num_matching]
