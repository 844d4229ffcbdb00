"""Tracks an output's position in a text that it is expected to follow, and the candidates from there.

While the output agrees with the text, the position advances. After a difference, there are two guesses where the output
returns to the text: where its last symbols occur, and after the word that it replaced. A guess whose candidate is
accepted becomes the position.

The symbols of a text are the characters of a `str`, so that every search runs in C: the characters with the numbers of
its bytes (`latin-1`) or ids.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from uag.adapters import Place, TokenizerAdapter, encode_after
from uag.drafting.ranked import Evidence
from uag.proposal import num_equal

Expected = str | tuple[int, ...]
"""A prediction: text, or target ids."""

_WORD = re.compile("[0-9A-Za-z_\x80-\xff]*")
"""A word in bytes; bytes from 128 on are parts of letters in most texts."""

_PIECE = 384
"""Bytes of text that are encoded for one round's candidates. Increase for more candidates; decrease to save time."""

_NUM_UNSETTLED_BYTES = 32
"""Bytes at the end of a piece whose ids are not used, because the text after them may change them. Increase to cover
longer words; decrease for more candidates."""

FOLLOWS, MATCHES, REPLACED = "follows", "matches", "replaced"

PRIORS: dict[str, tuple[float, ...]] = {
    FOLLOWS: (0.6, 0.75, 0.85, 0.9, 0.94, 0.97, 0.98),
    MATCHES: (0.6, 0.75, 0.85),
    REPLACED: (0.5,),
}
"""Initial acceptance rates: by the number of followed tokens (each level doubles it), by the length of a match, and
after a replaced word."""

_NUM_MATCHING = (2, 4, 8)
"""Lengths of matches of the output's end in the text, in tokens. Increase for more reliable matches; decrease to find
matches sooner after a difference."""

NUM_WRITTEN = 16
"""Number of last output ids that influence how the text is encoded after them."""


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


@dataclass(frozen=True)
class Guess:
    """A position in the text where the output may continue: the index of the next symbol, and its evidence.

    `run` symbols were followed up to there without a break; 0 after a difference.
    """

    place: int
    evidence: Evidence
    run: int = 0


class Follower:
    """Follows one text along one row's output, which comes after `prompt`.

    Attributes:
        known: the text.
        place: index of the next symbol, or of the symbol where the output left the text.
        run: number of symbols before it that the output agreed with.
        is_lost: whether the output has left the text.
    """

    def __init__(self, known: KnownText, prompt: Sequence[int] = ()) -> None:
        self.known = known
        self.place = 0
        self.run = 0
        self.is_lost = False
        self._written = list(prompt[-NUM_WRITTEN:])
        self._tail = ""  # the output's last symbols
        self._num_replaced: int | None = None  # symbols written instead of the text's in the last round

    @property
    def has_more(self) -> bool:
        """Whether the output follows the text and has not reached its end."""
        return not self.is_lost and self.place < len(self.known)

    def write(self, output_ids: Sequence[int]) -> None:
        """Advance by new output ids."""
        self._written = [*self._written, *output_ids][-NUM_WRITTEN:]
        symbols = self.known.symbols_of(output_ids)
        if not symbols:
            return
        self._tail = (self._tail + symbols)[-_NUM_MATCHING[-1] * self.known.token_size :]
        if self.is_lost:
            self._num_replaced = None
            return
        num_followed = num_equal(symbols, self.known.symbols[self.place : self.place + len(symbols)])
        self.place += num_followed
        self.run += num_followed
        if num_followed < len(symbols):
            self.is_lost, self._num_replaced = True, len(symbols) - num_followed

    def continue_at(self, guess: Guess) -> None:
        """Continue the output from a guess."""
        self.place, self.run, self.is_lost = guess.place, guess.run, False

    def continuation(self, guess: Guess, num: int) -> tuple[list[int], list[Evidence]]:
        """Return up to `num` next ids, and each one's evidence if those before it are accepted."""
        ids = self.known.ids_after(self._written, guess.place, num)
        further = [self._followed_for(guess.run + n * self.known.token_size) for n in range(1, len(ids))]
        return ids, [guess.evidence, *further][: len(ids)]

    def guesses(self) -> list[Guess]:
        """Return the positions where the output may continue in the text."""
        if not self.is_lost:
            return [Guess(self.place, self._followed_for(self.run), self.run)]
        guesses = [self._after_match(), self._after_replaced()]
        return [guess for guess in guesses if guess is not None and guess.place < len(self.known)]

    def _followed_for(self, run: int) -> Evidence:
        return FOLLOWS, min((run // self.known.token_size).bit_length(), len(PRIORS[FOLLOWS]) - 1)

    def _after_match(self) -> Guess | None:
        """Return the position after the longest match of the output's end: the next one, else the last earlier one."""
        text, guess = self.known.symbols, None
        for level, num_tokens in enumerate(_NUM_MATCHING):
            size = num_tokens * self.known.token_size
            if len(self._tail) < size:
                break
            start = text.find(self._tail[-size:], max(self.place - size, 0))
            if start < 0:
                start = text.rfind(self._tail[-size:], 0, self.place)
            if start < 0:
                break  # a longer match cannot exist either
            guess = Guess(start + size, (MATCHES, level))
        return guess

    def _after_replaced(self) -> Guess | None:
        """Return the position after the word, or the ids, that the output has just replaced."""
        if self._num_replaced is None:
            return None
        is_ids = self.known.adapter is None
        place = self.place + self._num_replaced if is_ids else self.known.word_end(self.place)
        return Guess(place, (REPLACED, 0))
