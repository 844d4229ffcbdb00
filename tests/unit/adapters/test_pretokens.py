"""The proof of safe places: what it grants and what it must refuse."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.tokenizers import LLAMA3_PATTERN
from uag.adapters.pretokens import BOUNDARIES, GPT2_PATTERN, safe_boundaries


def split(pattern: str, behavior: str = "Isolated") -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": False}


@pytest.mark.parametrize("pattern", [GPT2_PATTERN, LLAMA3_PATTERN])
def test_known_patterns_cut_before_spaces_and_punctuation(pattern: str) -> None:
    assert safe_boundaries([split(pattern)], []) == BOUNDARIES


def test_the_rules_follow_the_added_tokens() -> None:
    assert " " in safe_boundaries([split(GPT2_PATTERN)], ["   "])
    assert " " not in safe_boundaries([split(GPT2_PATTERN)], ["a b"])
    assert "," not in safe_boundaries([split(GPT2_PATTERN)], ["x,y"])


def test_deepseek_cuts_before_a_space_behind_a_letter_and_not_before_marks_that_it_takes_for_han() -> None:
    steps = [
        *(split(pattern) for pattern in (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+")),
        {"type": "Digits", "individual_digits": True},
    ]
    assert safe_boundaries(steps, []) == "".join(mark for mark in BOUNDARIES if mark not in "、。")
    assert " " not in safe_boundaries(steps[:-1], [])  # a space behind a digit may stay in a gap


@pytest.mark.parametrize(
    "pattern",
    [
        r"\w+ \w+|\s+|.",  # a match reaches across
        r"[^\n]+|\n",  # one class holds both sides
        r"(?:\p{L}+ )+|\s+|[^\s\p{L}]+",  # a repeated group
        r"\p{L}+(?= )|\s+|[^\s\p{L}]+",  # looks at what follows
        r"(?<= )\p{L}+|\s+|\S+",  # looks back
        r"\p{L}+\b|\s+|\S",  # a boundary is a look in both directions
        r"\p{L}+$|\s+|\S+",  # the end of the text moves
        r"(\p{L})\1|\s+|\S",  # a back-reference
        r"\p{Lu}+|\d+",  # small letters and spaces may stay in gaps
        r"[\p{L}&&[^a]]+|\s+|\S",  # set operations are not understood
        r"[\h ]+|\s+|\S",  # \h is a hexadecimal digit in Rust's engine and a space in Python's
        r"(?:a|(?:b )?)+|\s+|\S",  # a repeated group inside a group
        r"\p{L}+(?!\S)|\s+|[^\s\p{L}]+",  # looks at what follows a letter
        r"\p{L}+'? |\s+|\S",  # reaches across where nothing stands between
        r"\s*|\S+",  # an empty match cuts nothing
        r"\s+(?!\S)|\p{Lu}+",  # takes a space only where nothing visible follows
    ],
)
def test_patterns_without_a_proof_have_no_safe_spaces(pattern: str) -> None:
    assert " " not in safe_boundaries([split(pattern)], [])


def test_other_behaviours_and_steps_are_refused() -> None:
    assert safe_boundaries([split(GPT2_PATTERN, "MergedWithNext")], []) == ""
    assert safe_boundaries([{"type": "Whitespace"}], []) == ""
    assert safe_boundaries([{"type": "ByteLevel", "use_regex": False}], []) == ""
