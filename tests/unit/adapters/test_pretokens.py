"""The proof of safe places: what it grants and what it must refuse."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tokenizer_builders import LLAMA3_PATTERN
from uag.adapters.pretokens import GPT2_PATTERN, SafePlaces, safe_places


def split(pattern: str, behavior: str = "Isolated") -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": False}


@pytest.mark.parametrize("pattern", [GPT2_PATTERN, LLAMA3_PATTERN])
def test_known_patterns_cut_before_spaces_and_punctuation(pattern: str) -> None:
    assert safe_places([split(pattern)], []) == SafePlaces(True, True, True)


def test_the_rules_follow_the_added_tokens() -> None:
    assert safe_places([split(GPT2_PATTERN)], ["   "]).before_space
    assert not safe_places([split(GPT2_PATTERN)], ["a b"]).before_space
    assert not safe_places([split(GPT2_PATTERN)], ["x,y"]).before_punctuation


def test_deepseek_cuts_before_a_space_only_where_a_letter_follows() -> None:
    steps = [split(r"[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), {"type": "Digits", "individual_digits": True}]
    rules = safe_places(steps, [])
    assert (rules.before_space, rules.before_space_letter) == (False, True)


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
        r"\p{L}+|\d+",  # spaces may stay in gaps
        r"[\p{L}&&[^a]]+|\s+|\S",  # set operations are not understood
    ],
)
def test_patterns_without_a_proof_have_no_safe_spaces(pattern: str) -> None:
    rules = safe_places([split(pattern)], [])
    assert not rules.before_space


def test_other_behaviours_and_steps_are_refused() -> None:
    assert safe_places([split(GPT2_PATTERN, "MergedWithNext")], []) == SafePlaces()
    assert safe_places([{"type": "Whitespace"}], []) == SafePlaces()
    assert safe_places([{"type": "ByteLevel", "use_regex": False}], []) == SafePlaces()
