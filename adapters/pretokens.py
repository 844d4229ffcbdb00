"""Places where a pre-tokenizer always cuts, read from its pattern.

A place is safe if encoding the text left of it and the text right of it apart gives the ids of the whole text. Only
places between a letter or digit and one of `BOUNDARIES`, a space for example, are looked at. They are safe if

1. no match of any pattern can hold both characters, so that neither side sees the other; and
2. some pattern matches the boundary alone, or every letter and digit alone, so that a match begins or ends there.

For the first, each top-level alternative is read as a row of atoms, groups and choices inside it left out: a match can
only hold both characters if an atom that matches the boundary stands behind one that matches a letter, or one repeated
atom matches both. A pattern with more than that (look-behind, back-references, repeated groups) has no safe places.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

import regex  # type: ignore[import-untyped]

# What ByteLevel uses by itself, from GPT-2.
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

# Characters before which places are looked for: spaces serve most scripts and code, full-width marks Chinese and
# Japanese, comma and colon JSON and tables. More of them give shorter texts to encode anew, and take longer to prove.
BOUNDARIES = " \n\t,.;:!?，。、：；！？"

_CANDIDATE = re.compile(f"[{BOUNDARIES}]")
_LOOKAHEAD = r"(?!\S)"  # the one in use; it stands behind spaces
_ESCAPE = r"\\[pP]\{[^}]*\}|\\[pP]\w|\\x[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\[sSdDwWnrtf]|\\\W"
_CLASS = rf"\[\^?\]?(?:{_ESCAPE}|\[:\^?\w+:\]|&(?!&)|[^\][\\&])*\]"  # without classes inside and without &&
_TOKEN = re.compile(
    r"(?P<bar>\|)|(?P<open>\((?!\?)|\(\?i?(?:-[a-z]+)?:)|(?P<close>\))|(?P<quantifier>[?*+]|\{\d*,?\d*\})"
    rf"|(?P<atom>{re.escape(_LOOKAHEAD)}|{_CLASS}|{_ESCAPE}|[^\\\[\](){{}}|?*+^$])",
    re.DOTALL,
)


def is_letter(character: str) -> bool:
    """Whether this is a letter or decimal digit, now and in Unicode 3.2: pattern engines differ in newer ones.

    >>> is_letter("a"), is_letter("中"), is_letter("5"), is_letter("²"), is_letter("-")
    (True, True, True, False, False)
    """
    then = unicodedata.ucd_3_2_0.category(character)
    return (character.isalpha() and then[0] == "L") or (character.isdecimal() and then == "Nd")


def find_places(text: str, boundaries: str) -> Iterator[int]:
    """Find the places between a letter or digit and one of some boundaries, ascending.

    >>> list(find_places("so it is: 中文，", " ，"))
    [2, 5, 12]
    """
    for found in _CANDIDATE.finditer(text, 1):
        if found.group() in boundaries and is_letter(text[found.start() - 1]):
            yield found.start()


def safe_boundaries(pre_tokenizers: Iterable[dict[str, Any]], added: Iterable[str]) -> str:
    """Give those of `BOUNDARIES` before which a place is safe.

    Args:
        pre_tokenizers: The steps, as JSON.
        added: The added tokens that are cut out of a text before all steps.
    """
    joined = {right for content in added for left, right in pairwise(content) if is_letter(left)}
    patterns: list[str] = []
    for step in pre_tokenizers:
        if step["type"] == "ByteLevel":
            patterns += [GPT2_PATTERN] if step.get("use_regex", True) else []
        elif step["type"] == "Digits":
            patterns.append(r"\p{N}" if step["individual_digits"] else r"\p{N}+")
        elif step["type"] == "Split" and step["behavior"] == "Isolated" and not step["invert"]:
            pattern = step["pattern"]
            patterns.append(pattern["Regex"] if "Regex" in pattern else re.escape(pattern["String"]))
        else:
            return ""
    return "".join(mark for mark in _boundaries_of(tuple(patterns)) if mark not in joined)


@lru_cache(maxsize=64)  # a proof takes some 5 to 30 ms
def _boundaries_of(patterns: tuple[str, ...]) -> str:
    try:
        if any(regex.fullmatch(pattern, "") for pattern in patterns):
            return ""  # an empty match cuts nothing
        alternatives = [alternative for pattern in patterns for alternative in _alternatives(pattern)]
        closed = [mark for mark in BOUNDARIES if not any(_may_join(atoms, mark) for _, atoms in alternatives)]
        # What matches one character alone still matches there, maybe longer, whatever follows: without a lookahead.
        sources = [source for source, _ in alternatives if _LOOKAHEAD not in source]
        cut = regex.compile("|".join(sources)) if sources else None
    except (ValueError, regex.error):
        return ""
    if cut is None or not closed:
        return ""
    if all(map(cut.fullmatch, closed)):
        return "".join(closed)
    cuts_letters = all(map(cut.fullmatch, _letters()))  # DeepSeek: no pattern for a space alone, but for each letter
    return "".join(mark for mark in closed if cuts_letters or cut.fullmatch(mark))


def _alternatives(pattern: str) -> list[tuple[str, list[tuple[str, bool]]]]:
    """List the top-level alternatives of a pattern: their source and their atoms, each with whether it repeats.

    Raises:
        ValueError: A construct that may hold more than its atoms in their order tell.
    """
    found: list[tuple[str, list[tuple[str, bool]]]] = []
    atoms: list[tuple[str, bool]] = []
    depth = start = at = 0
    last: str | None = None
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        kind = token.lastgroup if token else None
        if token is None or (kind == "quantifier" and last != "atom" and (last != "close" or token.group() != "?")):
            raise ValueError(pattern)
        if kind == "atom":
            atoms.append((token.group(), False))
        elif kind == "quantifier":
            if token.group() != "?":
                atoms[-1] = (atoms[-1][0], True)
        elif kind != "bar":
            depth += 1 if kind == "open" else -1
        elif depth == 0:
            found.append((pattern[start:at], atoms))
            start, atoms = token.end(), []
        at = token.end()
        last = last if kind == "quantifier" else kind
    if depth != 0:
        raise ValueError(pattern)
    return [*found, (pattern[start:], atoms)]


def _may_join(atoms: list[tuple[str, bool]], mark: str) -> bool:
    """Whether a match may hold a letter directly followed by `mark`, or look at what follows a letter."""
    is_behind_letter = False
    for atom, repeats in atoms:
        has_letter = _holds_letter(atom)
        if atom == _LOOKAHEAD:
            if is_behind_letter:
                return True
        elif (is_behind_letter or (has_letter and repeats)) and regex.match(atom, mark):
            return True
        is_behind_letter |= has_letter
    return False


@cache
def _letters() -> str:
    return "".join(filter(is_letter, map(chr, range(0x30000))))  # Unicode 3.2 has none behind


@lru_cache(maxsize=1024)
def _holds_letter(atom: str) -> bool:
    return atom != _LOOKAHEAD and regex.search(atom, _letters()) is not None
