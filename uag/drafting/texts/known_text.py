"""A text that is known in advance, in a form that can be searched and compared with an output.

Its symbols are the characters of a `str`, so that every search runs in C: the characters with the numbers of its bytes
(`latin-1`) or ids.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import Self

import numpy as np

from uag.adapters import Place, TokenizerAdapter, encode_after

Expected = str | tuple[int, ...]
"""A prediction: text, or target ids."""

_WORD = re.compile("[0-9A-Za-z_\x80-\xff]*")
"""A word in bytes; bytes from 128 on are parts of letters in most texts."""

_PIECE = 384
"""Bytes of text that are encoded for one round's candidates. Increase for more candidates; decrease to save time."""

_NUM_UNSETTLED_BYTES = 32
"""Bytes at the end of a piece whose ids are not used, because the text after them may change them. Increase to cover
longer words; decrease for more candidates."""


class KnownText:
    """A text that the output is expected to follow.

    Attributes:
        symbols: the text, see the module's docstring.
        adapter: the target's tokenizer if symbols are bytes; None if they are ids.
        token_size: typical number of symbols per token.
    """

    def __init__(self, symbols: str, adapter: TokenizerAdapter | None = None) -> None:
        self.symbols = symbols
        self.adapter = adapter
        self.token_size = 1 if adapter is None else 4

    @classmethod
    def of(cls, text: Expected, adapter: TokenizerAdapter | None, prompt: Sequence[int]) -> Self:
        """Return target ids, or a text as the target would write it after a prompt, as a known text.

        Adds dummy spaces that the target's tokenizer adds to a text, and omits what it cannot represent.
        """
        if adapter is None or isinstance(text, tuple):
            # Not `map(chr, text)`, which takes four times as long and 90 MB for a million ids. Some ids are surrogates.
            return cls(np.array(text, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass"))
        data = text.encode("utf-8", "replace")
        data = adapter.prefix(data, _place_behind(prompt, adapter)) + data
        if not adapter.is_exact:
            data = adapter.join(adapter.encode_continuation(data)) or data
        return cls(data.decode("latin-1"), adapter)

    def __len__(self) -> int:
        return len(self.symbols)

    def symbols_of(self, ids: Sequence[int]) -> str:
        """Return the symbols that ids add to the output; control tokens add no bytes."""
        if self.adapter is None:
            return "".join(map(chr, ids))
        return b"".join(self.adapter.join([token_id]) or b"" for token_id in ids).decode("latin-1")

    def ids_after(self, written: Sequence[int], place: int, num: int) -> list[int]:
        """Return up to `num` target ids that continue the output with this text, from the symbol at `place` on.

        If the output stopped inside a word of the text, or replaced one, the ids of the whole text are not what the
        target writes next. So a piece of the text is encoded after `written`, the last ids of the output.
        """
        if self.adapter is None:
            return [ord(symbol) for symbol in self.symbols[place : place + num]]
        piece = self.symbols[place : place + _PIECE]
        ids, ends = encode_after(self.adapter, written, piece.encode("latin-1"))
        if place + len(piece) < len(self):
            del ids[bisect_right(ends, len(piece) - _NUM_UNSETTLED_BYTES) :]
        return ids[:num]

    def word_end(self, place: int) -> int:
        """Return the end of the word at a symbol, or `place` itself if there is none."""
        word = _WORD.match(self.symbols, place)
        return place if word is None else word.end()


def _place_behind(prompt: Sequence[int], adapter: TokenizerAdapter) -> Place:
    is_text = [adapter.join([token_id]) is not None for token_id in prompt]
    if is_text and is_text[-1]:
        return Place.CONTINUATION
    return Place.AFTER_CONTROL if any(is_text) else Place.START
