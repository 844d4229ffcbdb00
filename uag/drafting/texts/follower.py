"""Tracks an output's position in a text that it is expected to follow, and the candidates from there.

While the output agrees with the text, the position advances. After a difference, there are two guesses where the output
returns to the text: where its last ids occur, and after the word, or the ids, that it replaced. A guess whose candidate
is accepted becomes the position.

Texts are target ids, each as the character with its number, so that every search runs in C.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from uag.adapters import Place, TokenizerAdapter, encode_after
from uag.drafting.ranked import Evidence
from uag.proposal import num_equal

Expected = str | tuple[int, ...]
"""A prediction: text, or target ids."""

FOLLOWS, MATCHES, REPLACED = "follows", "matches", "replaced"

PRIORS: dict[str, tuple[float, ...]] = {
    FOLLOWS: (0.6, 0.75, 0.85, 0.9, 0.94, 0.97, 0.98),
    MATCHES: (0.6, 0.75, 0.85),
    REPLACED: (0.5,),
}
"""Initial acceptance rates: by the number of followed ids (each level doubles it), by the length of a match, and after
replaced ids."""

_IN_WORD = re.compile(rb"[0-9A-Za-z_\x80-\xff]")
"""The beginning of an id that continues a word; bytes from 128 on are parts of letters in most texts."""

_PIECE = 16_384
"""Bytes of a text that are encoded at once: before the first round, and when the output nears the end of what was
encoded. Increase to find more places where the output rejoins the text; decrease to lose less time on wrong texts."""

_NUM_UNSETTLED_BYTES = 32
"""Bytes at the end of a piece whose ids are not used, because the text after them may change them. Increase to cover
longer words; decrease for longer pieces."""

_NUM_AHEAD = 128
"""Ids after the output's position that should be encoded. Increase for longer blocks; decrease to encode less."""

_NUM_MATCHING = (2, 4, 8)
"""Lengths of matches of the output's end in the text, in ids. Increase for more reliable matches; decrease to find
matches sooner after a difference."""


def known_ids(text: Expected, adapter: TokenizerAdapter | None, prompt: Sequence[int]) -> Iterator[str]:
    """Yield target ids, or a text as the target would write it after a prompt, as characters.

    A text is encoded in pieces, with the dummy spaces that the target's tokenizer adds and without what it cannot
    represent. `adapter` may be None for ids.
    """
    if adapter is None or isinstance(text, tuple):
        yield _symbols(text)
        return
    data = text.encode("utf-8", "replace")
    data = adapter.prefix(data, _place_behind(prompt, adapter)) + data
    if not adapter.is_exact:
        data = b"".join(adapter.join([token_id]) or b"" for token_id in adapter.encode_continuation(data))
    written = prompt
    while data:
        ids, ends = encode_after(adapter, written, data[:_PIECE])
        if len(data) > _PIECE:  # the text after the last ids may change them
            del ids[bisect_right(ends, _PIECE - _NUM_UNSETTLED_BYTES) :]
        if not ids:
            return
        yield _symbols(ids)
        written, data = ids, data[ends[len(ids) - 1] :]


def _symbols(ids: Any) -> str:
    # Not `map(chr, ids)`, which takes four times as long and 90 MB for a million ids. Some ids are surrogates.
    return np.array(ids, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")


def _place_behind(prompt: Sequence[int], adapter: TokenizerAdapter) -> Place:
    is_text = [adapter.join([token_id]) is not None for token_id in prompt]
    if is_text and is_text[-1]:
        return Place.CONTINUATION
    return Place.AFTER_CONTROL if any(is_text) else Place.START


@dataclass(frozen=True)
class Guess:
    """A position in the text where the output may continue: the index of the next id, and its evidence.

    `run` ids were followed up to there without a break; 0 after a difference.
    """

    place: int
    evidence: Evidence
    run: int = 0


class Follower:
    """Follows one text along one row's output.

    Attributes:
        known: the text so far, as `known_ids` yields it.
        place: index of the next id, or of the id where the output left the text.
        run: number of ids before it that the output agreed with.
        is_lost: whether the output has left the text.
    """

    def __init__(self, text: Expected, adapter: TokenizerAdapter | None = None, prompt: Sequence[int] = ()) -> None:
        self.known = ""
        self._pieces = known_ids(text, adapter, prompt)
        self._adapter = adapter
        self.place = 0
        self.run = 0
        self.is_lost = False
        self._tail = ""  # the output's last ids
        self._num_replaced: int | None = None  # ids written instead of the text's in the last round
        self._read_on()

    def _read_on(self) -> None:
        """Encode more of the text where the output nears its end."""
        if self.place + _NUM_AHEAD > len(self.known):
            self.known += next(self._pieces, "")

    @property
    def has_more(self) -> bool:
        """Whether the output follows the text and has not reached its end."""
        return not self.is_lost and self.place < len(self.known)

    def write(self, output_ids: Sequence[int]) -> None:
        """Advance by new output ids."""
        written = "".join(map(chr, output_ids))
        self._tail = (self._tail + written)[-_NUM_MATCHING[-1] :]
        if self.is_lost:
            self._num_replaced = None
            return
        num_followed = num_equal(written, self.known[self.place : self.place + len(written)])
        self.place += num_followed
        self.run += num_followed
        if num_followed < len(written):
            self.is_lost, self._num_replaced = True, len(written) - num_followed
        self._read_on()

    def continue_at(self, guess: Guess) -> None:
        """Continue the output from a guess."""
        self.place, self.run, self.is_lost = guess.place, guess.run, False
        self._read_on()

    def continuation(self, guess: Guess, num: int) -> tuple[list[int], list[Evidence]]:
        """Return up to `num` next ids, and each one's evidence if those before it are accepted."""
        ids = [ord(symbol) for symbol in self.known[guess.place : guess.place + num]]
        return ids, [guess.evidence, *(_followed_for(guess.run + n) for n in range(1, len(ids)))][: len(ids)]

    def guesses(self) -> list[Guess]:
        """Return the positions where the output may continue in the text."""
        if not self.is_lost:
            return [Guess(self.place, _followed_for(self.run), self.run)]
        guesses = [self._after_match(), self._after_replaced()]
        return [guess for guess in guesses if guess is not None and guess.place < len(self.known)]

    def _after_match(self) -> Guess | None:
        """Return the position after the longest match of the output's end: the next one, else the last earlier one."""
        guess = None
        for level, size in enumerate(_NUM_MATCHING):
            if len(self._tail) < size:
                break
            start = self.known.find(self._tail[-size:], max(self.place - size, 0))
            if start < 0:
                start = self.known.rfind(self._tail[-size:], 0, self.place)
            if start < 0:
                break  # a longer match cannot exist either
            guess = Guess(start + size, (MATCHES, level))
        return guess

    def _after_replaced(self) -> Guess | None:
        """Return the position after the ids, or the word, that the output has just replaced."""
        if self._num_replaced is None:
            return None
        place = self.place + (self._num_replaced if self._adapter is None else 1)
        while self._adapter is not None and place < len(self.known):
            if not _IN_WORD.match(self._adapter.join([ord(self.known[place])]) or b""):
                break
            place += 1
        return Guess(place, (REPLACED, 0))


def _followed_for(run: int) -> Evidence:
    return FOLLOWS, min(run.bit_length(), len(PRIORS[FOLLOWS]) - 1)
