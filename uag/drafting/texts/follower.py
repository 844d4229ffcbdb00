"""Tracks an output's position in a text that it is expected to follow, and the candidates from there.

While the output agrees with the text, the position advances. After a difference, there are two guesses where the output
returns to the text: where its last symbols occur, and after the word that it replaced. A guess whose candidate is
accepted becomes the position.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from uag.drafting.ranked import Evidence
from uag.drafting.texts.known_text import KnownText
from uag.proposal import num_equal

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
