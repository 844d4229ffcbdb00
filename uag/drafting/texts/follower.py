"""Where an output stands in a text that it is expected to follow, and where it may go on after it has left it.

As long as the output agrees, its place moves along. Behind a difference there are guesses, each with what speaks for
it: the output's last symbols stand just ahead (something was left out) or end where it left the text (something was put
in); the word, or the line, that it left was replaced; or they stand somewhere else in the text. What is offered from a
guess and accepted proves it. All searches are bounded, but for the one far away, which asks an index.
"""

import re
from dataclasses import dataclass

from uag.drafting.texts.grounds import BEHIND, FAR, FOLLOWS, INSERTED, LINE, NEAR, WORD, Ground
from uag.drafting.texts.known_text import Known
from uag.drafting.texts.renames import Renames, word_start

_AHEAD, _BEHIND = 512, 128
"""Tokens looked through ahead of the place that was left, and behind it: more find longer deletions, and take time."""

_TAIL = 64
"""Last symbols of the output that are kept: more tell equal places apart better."""

_MATCHES = (8, 4, 2, 1)
"""Tokens' worth of symbols whose match is looked for, the surest first."""

_SURE = 8
"""Tokens' worth of a match that proves a place without a candidate accepted there."""

_MOST_WORDS = 3
"""Rounds behind a difference in which the replaced word may have ended: more find longer replacements, and guess
wrongly more often."""

_LONGEST_RUN = 6
"""Classes of how long the text was followed, in doublings."""

_NEW_LINE = re.compile(r"\n[ \t]*\Z")


@dataclass(frozen=True)
class Guess:
    """A place in the text where the output may go on.

    Attributes:
        place: the symbol that is due next.
        ground: what speaks for it.
        run: symbols that were followed up to there without a break; 0 behind a difference.
    """

    place: int
    ground: Ground
    run: int = 0


class Follower:
    """Follows one text along one row's output.

    Attributes:
        known: the text.
        place: the symbol that is due next, or the place where the output left the text.
        run: symbols up to there that agreed without a break.
        is_lost: whether the output has left the text.
        renames: words that the output writes otherwise.
    """

    def __init__(self, known: Known) -> None:
        self.known = known
        self.place = 0
        self.run = 0
        self.is_lost = False
        self.renames = Renames()
        self._tail = ""
        self._num_rounds = self._num_since = 0

    def write(self, symbols: str) -> None:
        """Move along what was written."""
        if not symbols:
            return
        self._tail = (self._tail + symbols)[-_TAIL:]
        if self.is_lost:
            self._num_rounds += 1
            self._num_since += len(symbols)
            return
        text = self.known.symbols
        while symbols:
            size = len(symbols) if text.startswith(symbols, self.place) else _num_equal(symbols, text, self.place)
            self.place += size
            self.run += size
            symbols = symbols[size:]
            passed = self.renames.passed(text, self.place, symbols) if symbols and self.renames.new else None
            if passed is None:
                break
            self.place += passed[0]
            self.run += passed[1]
            symbols = symbols[passed[1] :]
        if symbols:
            self.is_lost, self._num_rounds, self._num_since = True, 1, len(symbols)

    def go_on_at(self, guess: Guess) -> None:
        """Take a guess for true: what follows is written there."""
        if guess.ground[0] == WORD and self.known.is_words:
            self.renames.learn(self.known.symbols, self.place, guess.place, self._tail)
        self.place, self.run, self.is_lost = guess.place, guess.run, False

    def keep_word(self) -> None:
        """Believe no longer that the word here is renamed: the output has left what was offered, not the text."""
        text = self.known.symbols
        if self.renames.new and not self.is_lost:
            self.renames.new.pop(text[word_start(text, self.place) : self.known.word_end(self.place)], None)

    def guesses(self) -> list[Guess]:
        """Return where the output may go on in the text; at its end where it was followed to there."""
        if not self.is_lost:
            return [Guess(self.place, (FOLLOWS, self.level(self.run)), self.run)]
        matches = self._matches()
        if len(matches) == 1 and matches[0].run:
            self.go_on_at(matches[0])
            return self.guesses()
        found: list[Guess | None] = [*matches, None if matches else self._far(), self._replaced()]
        return [guess for guess in found if guess is not None and guess.place < len(self.known)]

    def level(self, run: int) -> int:
        """Return the class of a candidate behind so many symbols that agreed."""
        return min((run // self.known.grain).bit_length(), _LONGEST_RUN)

    def _far(self) -> Guess | None:
        place = self.known.far_place(self._tail, self.place)
        return None if place is None else Guess(place, (FAR, 0))

    def _replaced(self) -> Guess | None:
        """Return the place behind the line or the word that the output has replaced, if it may have ended there."""
        known, left = self.known, self.place
        line = _NEW_LINE.search(self._tail) if known.is_words else None
        if line is not None:
            place = self._next_line(line.group())
            return None if place is None else Guess(place, (LINE, 0))
        if self._num_rounds > _MOST_WORDS:
            return None
        place = known.word_end(left) if known.is_words else left + self._num_since
        return Guess(place, (WORD, self._num_rounds - 1))

    def _matches(self) -> list[Guess]:
        """Return the places behind the longest match of the output's end nearby: where it left, and the next ahead."""
        text, left, grain = self.known.symbols, self.place, self.known.grain
        lasts = [(level, self._tail[-tokens * grain :]) for level, tokens in enumerate(_MATCHES)]
        lasts = [(level, last) for level, last in lasts if len(last) == _MATCHES[level] * grain]
        for level, last in lasts:
            found = text.find(last, max(left - len(last) + 1, 0), left + _AHEAD * grain)
            place = found + len(last)
            ahead = [Guess(place, (NEAR, level), self._sure_run(level, place))] if found >= 0 else []
            if text.endswith(last, 0, left):
                return [Guess(left, (INSERTED, level), self._sure_run(level, left)), *ahead]
            if ahead:
                return ahead
        for level, last in lasts:
            found = text.rfind(last, max(left - _BEHIND * grain, 0), left) if _MATCHES[level] > 1 else -1
            if found >= 0:
                place = found + len(last)
                return [Guess(place, (BEHIND, level), self._sure_run(level, place))]
        return []

    def _sure_run(self, level: int, place: int) -> int:
        """Return the length of a match that proves its place; 0 for one that does not."""
        return self._run_of(place) if _MATCHES[level] >= _SURE else 0

    def _run_of(self, place: int) -> int:
        """Return how many of the output's last symbols stand before a place."""
        before = self.known.symbols[max(place - len(self._tail), 0) : place]
        pairs = zip(reversed(self._tail), reversed(before), strict=False)
        return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(self._tail), len(before)))

    def _next_line(self, begun: str) -> int | None:
        """Return the place in the line behind the one that was left, behind what the output has begun its own with."""
        text, left = self.known.symbols, self.place
        found = text.find("\n", left, left + _AHEAD * self.known.grain)
        return found + len(begun) if found >= 0 and text.startswith(begun, found) else None


def _num_equal(symbols: str, text: str, place: int) -> int:
    """Return how many symbols agree with the text from a place on."""
    pairs = zip(symbols, text[place : place + len(symbols)], strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(symbols), len(text) - place))
