"""Where a pre-tokenizer always cuts, proven from its pattern.

A place between two characters is safe when no match of any pattern can reach across it and some pattern always cuts
there. Then the ids on its left do not depend on what is on its right, and the other way round, so a text can be
re-encoded from there on. The proof takes the follow sets of Glushkov's automaton (V. M. Glushkov, 1961): which
character class may directly follow which other inside one match. Whatever the proof does not understand has no safe
places, and is re-encoded whole.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

import regex  # type: ignore[import-untyped]

# What ByteLevel uses by itself, from GPT-2.
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

PUNCTUATION = ",.;:!?，。、；：！？"
_DOUBTFUL_SPACES = "\u180e\u200b\ufeff"
_LOOKAHEADS = (r"(?!\S)", r"(?=\s)")
_FLAGS = re.compile(r"\?(i?)(?:-[a-z]+)?:")
_QUANTIFIER = re.compile(r"[?*+][?+]?|\{\d*,?\d*\}[?+]?")
_ATOM = re.compile(
    r"\[\^?\]?(?:\\[pPxu]\{[^}]*\}|\\.|\[:\^?\w+:\]|[^\]\\])*\]|\\[pP]\{[^}]*\}|\\[pP]\w|\\x[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\[^\d\W_bBAzZGkKgX]"
    r"|\\\W|[^\\\[\](){}|?*+^$.]|\.",
    re.DOTALL,
)


class UnknownPatternError(Exception):
    """A pattern with parts that the proof does not cover."""


@dataclass
class _Part:
    """Follow sets of a piece of a pattern; atoms are numbered."""

    is_nullable: bool
    first: set[int] = field(default_factory=set)
    last: set[int] = field(default_factory=set)


class _Pattern:
    """Character classes of a pattern and which may directly follow which."""

    def __init__(self, pattern: str) -> None:
        self.atoms: list[str] = []
        self.follow: set[tuple[int, int]] = set()
        self.before_lookahead: set[int] = set()
        self._text = pattern
        self._at = 0
        self._ignore_case = False
        part = self._alternatives()
        if self._at != len(pattern) or part.is_nullable:
            raise UnknownPatternError(pattern)

    def _alternatives(self) -> _Part:
        whole = self._sequence()
        while self._text.startswith("|", self._at):
            self._at += 1
            other = self._sequence()
            whole = _Part(whole.is_nullable or other.is_nullable, whole.first | other.first, whole.last | other.last)
        return whole

    def _sequence(self) -> _Part:
        whole = _Part(True)
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            lookahead = next((form for form in _LOOKAHEADS if self._text.startswith(form, self._at)), None)
            if lookahead is not None:
                if whole.is_nullable:  # then the class before it is not known here
                    raise UnknownPatternError(self._text)
                self.before_lookahead |= whole.last
                self._at += len(lookahead)
                continue
            part = self._quantified()
            self.follow |= {(i, j) for i in whole.last for j in part.first}
            whole = _Part(
                whole.is_nullable and part.is_nullable,
                whole.first | (part.first if whole.is_nullable else set()),
                part.last | (whole.last if part.is_nullable else set()),
            )
        return whole

    def _quantified(self) -> _Part:
        part = self._single()
        while found := _QUANTIFIER.match(self._text, self._at):
            self._at = found.end()
            sign = found.group()
            if sign[0] != "?":
                self.follow |= {(i, j) for i in part.last for j in part.first}
            if sign[0] in "?*" or sign.startswith(("{0", "{,")):
                part = _Part(True, part.first, part.last)
        return part

    def _single(self) -> _Part:
        if self._text.startswith("(", self._at):
            flags = _FLAGS.match(self._text, self._at + 1)
            if flags is None and self._text.startswith("(?", self._at):
                raise UnknownPatternError(self._text)
            outside = self._ignore_case
            self._ignore_case |= flags is not None and bool(flags.group(1))
            self._at = flags.end() if flags else self._at + 1
            part = self._alternatives()
            self._ignore_case = outside
            if not self._text.startswith(")", self._at):
                raise UnknownPatternError(self._text)
            self._at += 1
            return part
        found = _ATOM.match(self._text, self._at)
        if found is None or "&&" in found.group():
            raise UnknownPatternError(self._text)
        self._at = found.end()
        self.atoms.append(f"(?i:{found.group()})" if self._ignore_case else found.group())
        number = {len(self.atoms) - 1}
        return _Part(False, set(number), set(number))

    def reaches_across(self, left: str, right: str) -> bool:
        """Whether a match may hold a character of `left` directly followed by one of `right`."""
        # `right` is the short list: asked first, it spares nearly all searches through `left`
        return any(_matches_any(self.atoms[j], right) and _matches_any(self.atoms[i], left) for i, j in self.follow)

    def looks_ahead_after(self, left: str) -> bool:
        """Whether a lookahead may be asked right after a character of `left`."""
        return any(_matches_any(self.atoms[i], left) for i in self.before_lookahead)


@dataclass(frozen=True)
class SafePlaces:
    """Which places are safe, as the rules that `find` applies.

    Attributes:
        before_space: Between a visible character and a space.
        before_space_letter: The same, where a letter follows the space.
        before_punctuation: Between a letter and one of `PUNCTUATION`.
    """

    before_space: bool = False
    before_space_letter: bool = False
    before_punctuation: bool = False

    @property
    def pattern(self) -> re.Pattern[str] | None:
        """A pattern that matches at safe places: empty, then a group with the characters that prove the place."""
        return _place_pattern(self)


def place_offsets(rules: SafePlaces, text: str) -> Iterator[tuple[int, int]]:
    """Find the safe places of a text, each with the end of the characters that prove it."""
    if rules.pattern is not None:
        for found in rules.pattern.finditer(text):
            yield found.start(), found.end(found.lastindex or 0)


def safe_places(pre_tokenizers: Iterable[dict[str, Any]], added: Iterable[str]) -> SafePlaces:
    """Prove which places are safe for a list of pre-tokenizer steps and the added tokens that are cut out first."""
    patterns = _patterns(pre_tokenizers)
    if patterns is None:
        return SafePlaces()
    try:
        return _prove(tuple(patterns), tuple(added))
    except (UnknownPatternError, regex.error):
        return SafePlaces()


def _patterns(pre_tokenizers: Iterable[dict[str, Any]]) -> list[str] | None:
    patterns: list[str] = []
    for step in pre_tokenizers:
        if step["type"] == "ByteLevel":
            if step.get("use_regex", True):
                patterns.append(GPT2_PATTERN)
        elif step["type"] == "Digits":
            patterns.append(r"\p{N}" if step["individual_digits"] else r"\p{N}+")
        elif step["type"] == "Split" and step["behavior"] == "Isolated" and not step["invert"]:
            pattern = step["pattern"]
            patterns.append(pattern["Regex"] if "Regex" in pattern else re.escape(pattern["String"]))
        else:
            return None
    return patterns


@lru_cache(maxsize=64)
def _prove(patterns: tuple[str, ...], added: tuple[str, ...]) -> SafePlaces:
    parsed = [_Pattern(pattern) for pattern in patterns]
    visible, letters = _characters("LMNPSC"), _characters("L")

    def is_open(left: str, right: str) -> bool:
        lefts, rights = frozenset(left), frozenset(right)
        spans = any(a in lefts and b in rights for content in added for a, b in pairwise(content))
        return spans or any(part.reaches_across(left, right) or part.looks_ahead_after(left) for part in parsed)

    space_is_closed, punctuation_is_closed = not is_open(visible, " "), not is_open(letters, PUNCTUATION)
    followers = ("", *"aé1.\n中 \u0301'")
    return SafePlaces(
        before_space=space_is_closed and any(_always_matches(pattern, " ", followers) for pattern in patterns),
        before_space_letter=space_is_closed and _cuts_before_space_letter(patterns, parsed, letters),
        before_punctuation=punctuation_is_closed
        and any(all(_always_matches(pattern, mark, followers) for mark in PUNCTUATION) for pattern in patterns),
    )


def _always_matches(pattern: str, text: str, followers: Iterable[str]) -> bool:
    compiled = regex.compile(pattern)
    return all(compiled.match(text + following) for following in followers)


def _cuts_before_space_letter(patterns: tuple[str, ...], parsed: list[_Pattern], letters: str) -> bool:
    """Whether some pattern takes a space together with the letter behind it, and none before it touches either."""
    for pattern, part in zip(patterns, parsed, strict=True):
        compiled = regex.compile(pattern)
        if all(found is not None and found.end() > 1 for found in (compiled.match(f" {c}") for c in letters[::97])):
            return True
        if any(_matches_any(atom, " ") or _matches_any(atom, letters) for atom in part.atoms):
            return False
    return False


@cache
def _place_pattern(rules: SafePlaces) -> re.Pattern[str] | None:
    visible = rf"(?<=[^\s\ud800-\udfff{_DOUBTFUL_SPACES}])"
    forms = []
    if rules.before_space:
        forms.append(rf"{visible}(?=( ))")
    elif rules.before_space_letter:
        forms.append(rf"{visible}(?=( [^\W\d_]))")
    if rules.before_punctuation:
        forms.append(rf"(?<=[^\W\d_])(?=([{re.escape(PUNCTUATION)}]))")
    return re.compile("|".join(forms)) if forms else None


@lru_cache(maxsize=4096)
def _matches_any(atom: str, characters: str) -> bool:
    return regex.search(atom, characters) is not None


@cache
def _characters(categories: str) -> str:
    """List all characters of some general categories but spaces, and what some Unicode version calls a space."""
    # of the planes that hold nothing but unassigned and private characters, the ends stand for all
    codes = map(chr, [*range(0x34000), *range(0xE0000, 0xE1000), 0x50000, 0xDFFFF, 0xF0000, sys.maxunicode])
    visible = (c for c in codes if not c.isspace() and c not in _DOUBTFUL_SPACES and unicodedata.category(c) != "Cs")
    return "".join(c for c in visible if unicodedata.category(c)[0] in categories)
