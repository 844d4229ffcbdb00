"""The index of a known text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.adapters.strategies import SETTINGS
from uag.drafting.texts.known_text import Known
from uag.errors import OptionError


@SETTINGS
@given(st.text(st.sampled_from("ab"), max_size=60), st.text(st.sampled_from("ab"), max_size=20), st.integers(0, 60))
def test_the_index_finds_what_a_plain_search_finds(text: str, tail: str, place: int) -> None:
    known = Known.of_ids([ord(c) for c in text])
    last = tail[-known.far :]
    ends = [n + len(last) for n in range(len(text)) if text.startswith(last, n)] if len(last) == known.far else []
    ahead = [end for end in ends if end >= place]
    assert known.far_place(tail, place) == (ahead[0] if ahead else ends[-1] if ends else None)


def test_places_that_only_share_a_number_are_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uag.drafting.texts.known_text._FACTOR", 0)  # every n-gram has the same number then
    known = Known.of_ids([1, 2, 3, 4, 5, 6])
    assert known.far_place("".join(map(chr, [7, 8, 9])), 0) is None


def test_ids_beyond_any_vocabulary_are_refused() -> None:
    with pytest.raises(OptionError, match=r"prediction holds -1, which is no id"):
        Known.of_ids([3, -1])


def test_words_end_behind_letters_of_any_script() -> None:
    known = Known.of_bytes("naïve_2 日本 x".encode())
    assert known.word_end(0) == len("naïve_2".encode())
    assert known.word_end(len("naïve_2 ".encode())) == len("naïve_2 日本".encode())
    assert known.word_end(len("naïve_2".encode())) == len("naïve_2".encode())
