"""Encode a text that follows ids which are already written."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, takewhile

from uag.adapters.base import TokenizerAdapter

_NUM_CONTEXT_BYTES = 32  # bytes before the text that are encoded along with it


def encode_after(adapter: TokenizerAdapter, written_ids: Sequence[int], text: bytes) -> tuple[list[int], list[int]]:
    """Encode a text that follows ids which are already written; only the last ones of those are used.

    It is encoded together with the `_NUM_CONTEXT_BYTES` before it, or alone if a token would cross the boundary. The
    ids may differ from those of the whole text in longer words, their bytes do not. Returns the ids, up to the first
    position that the tokenizer cannot represent, and the byte offset in `text` at the end of each.

    >>> from transformers import ByT5Tokenizer
    >>> from uag.adapters import from_tokenizer
    >>> encode_after(from_tokenizer(ByT5Tokenizer()), [], b"abc")
    ([100, 101, 102], [1, 2, 3])
    """
    context = _last_bytes(adapter, written_ids)
    ids, ends = _encode(adapter, context + text)
    first = bisect_right(ends, len(context)) if context else 0
    if context and (not first or ends[first - 1] != len(context)):  # a token crosses the boundary
        context, first = b"", 0
        ids, ends = _encode(adapter, text)
    return ids[first:], [end - len(context) for end in ends[first:]]


def _last_bytes(adapter: TokenizerAdapter, written_ids: Sequence[int]) -> bytes:
    """Return about `_NUM_CONTEXT_BYTES` of the last ids, back to a control token or to the start of a token."""
    context = b""
    for token_id in reversed(written_ids[-_NUM_CONTEXT_BYTES:]):
        piece = adapter.join([token_id])
        if piece is None or len(context) >= _NUM_CONTEXT_BYTES:
            break
        context = piece + context
    return context


def _encode(adapter: TokenizerAdapter, text: bytes) -> tuple[list[int], list[int]]:
    """Return the ids of a text and the end offset of each, up to the first id whose bytes are not the text's."""
    ids = adapter.encode_continuation(text)
    pieces = [adapter.join([token_id]) or b"" for token_id in ids]
    ends = list(accumulate(map(len, pieces)))
    matches = (piece and text.endswith(piece, 0, end) for piece, end in zip(pieces, ends, strict=True))
    num_matching = len(list(takewhile(bool, matches)))
    return ids[:num_matching], ends[:num_matching]
