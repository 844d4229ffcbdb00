"""Words of a known text that the output writes otherwise, everywhere: a renamed argument, say."""

import re

_WORD = "0-9A-Za-z_\x80-\xff"
_ANY = re.compile(f"[{_WORD}]")
_LAST_WORD = re.compile(f"[{_WORD}]+\\Z")

_MOST_KEPT = 4
"""Words at most: more serve edits of many names, and take longer to look for in each piece."""


class Renames:
    """What has become of some words so far; a word that is then written as it was is no longer believed to change.

    Attributes:
        new: old word -> what the output has in its place.
    """

    def __init__(self) -> None:
        self.new: dict[str, str] = {}

    def learn(self, text: str, left: int, end: int, output: str) -> bool:
        """Note the word of the text that was left at a place and ends at `end`, and the output's last one.

        Returns:
            Whether there was something to note.
        """
        start = word_start(text, left)
        found = _LAST_WORD.search(output)
        old, new = text[start:end], "" if found is None else found.group()
        if len(old) < 2 or not new or old == new or not new.startswith(text[start:left]):
            return False
        self.new[old] = new
        if len(self.new) > _MOST_KEPT:
            del self.new[next(iter(self.new))]
        return True

    def passed(self, text: str, place: int, written: str) -> tuple[int, int] | None:
        """Say whether the output has gone past a renamed word where it differs from the text.

        Args:
            text: the known text.
            place: the first symbol that differs.
            written: the output from there on.

        Returns:
            Symbols of the text and of `written` behind which both have ended the word; None where that is not so.
        """
        start = word_start(text, place)
        for old, new in self.new.items():
            rest = new[place - start :]
            is_there = text.startswith(old, start) and not _ANY.match(text, start + len(old))
            if is_there and new.startswith(text[start:place]) and rest and written.startswith(rest):
                return start + len(old) - place, len(rest)
        return None

    def apply(self, text: str, start: int, end: int) -> tuple[str, list[int]]:
        """Return a piece of the text as the output would write it, and the place in the text before each symbol of it.

        Places inside a new word are the one behind the old word's first symbol, at which nothing begins.
        """
        parts, places, done = [], [], start
        if self.new:
            names = "|".join(map(re.escape, sorted(self.new, key=len, reverse=True)))
            for found in re.compile(f"(?<![{_WORD}])(?:{names})(?![{_WORD}])").finditer(text, start, end):
                new = self.new[found.group()]
                parts += [text[done : found.start()], new]
                places += [*range(done, found.start() + 1), *[found.start() + 1] * (len(new) - 1)]
                done = found.end()
        return "".join([*parts, text[done:end]]), [*places, *range(done, end + 1)]


def word_start(text: str, place: int) -> int:
    """Return where the word that a place stands in, or behind, begins."""
    found = _LAST_WORD.search(text, max(place - 64, 0), place)
    return place if found is None else found.start()
