"""Following a prediction: where it goes on after an edit."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tokenizers import small_tokenizer
from tests.unit.adapters.strategies import SETTINGS
from uag.adapters import from_tokenizer
from uag.drafting.known.prediction import PredictionSource

LINES = [f"    value_{n} = call_{n}(argument_{n}, {n})\n" for n in range(12)]
edits = st.dictionaries(
    st.integers(0, len(LINES) - 1),
    st.tuples(st.text(st.sampled_from("abcxyz_ (),\n"), max_size=30), st.integers(0, 30)),
    max_size=4,
)
"""By line: the text inserted before the line, and the number of its first characters to drop."""


class Following:
    """One prediction with a tokenizer whose ids are bytes, and what the target has written."""

    def __init__(self, text: str) -> None:
        adapter = from_tokenizer(small_tokenizer("byt5"))
        self.source = PredictionSource(text, 1, 1000, lambda: adapter)
        self.source.start([[5]])
        self.look_up()

    def look_up(self) -> None:
        num_matching, ids = self.source._look_up(0, 1000)
        self.offered = num_matching, bytes(token_id - 3 for token_id in ids).decode()

    def write(self, text: str) -> None:
        """Write what the target writes in a round, and look up where it goes on."""
        num_right = 0
        while text[: num_right + 1] == self.offered[1][: num_right + 1] and num_right < len(text):
            num_right += 1
        self.source._written(0, [3 + byte for byte in text.encode()], num_right)
        self.look_up()


@SETTINGS
@given(edits, st.integers(0, 10), st.integers(1, 9))
def test_after_enough_text_the_place_is_found(changes: dict[int, tuple[str, int]], last: int, size: int) -> None:
    """All lines differ, so after an unedited line there is only one place, regardless of earlier edits."""
    changes.pop(last, None)
    lines = [changes.get(n, ("", 0))[0] + line[changes.get(n, ("", 0))[1] :] for n, line in enumerate(LINES)]
    output, following = "".join(lines[: last + 1]), Following("".join(LINES))
    for start in range(0, len(output), size):
        following.write(output[start : start + size])
    num_matching, text = following.offered
    assert num_matching >= len(LINES[last])
    assert text == "".join(LINES[last + 1 :])


@pytest.mark.parametrize(
    ("old", "new", "written", "due"),
    [
        ("f(a, b)\n    return a", "f(x, b)\n    return a", "f(x", ", b)\n    return a"),  # a word replaced
        ("f(old, b) + 1", "f(new_one, b) + 1", "f(new_one", ", b) + 1"),
        ("f(naïve_2, b)", "f(!, b)", "f(!", ", b)"),
        ("f(日本 b)", "f(!, b)", "f(!", " b)"),
        ("one two three four fifteen six", "one two fifteen six", "one two fifteen", " six"),  # words left out
        ("alpha beta gamma delta", "alpha more beta gamma delta", "alpha more beta gam", "ma delta"),  # inserted
        ("value = 1\n", "\n\nvalue = 1\n", "\n\nvalue = ", "1\n"),  # text inserted before it
    ],
)
def test_behind_a_small_edit_the_text_goes_on(old: str, new: str, written: str, due: str) -> None:
    following = Following(old)
    for symbols in re.findall(r"\w+|\W", written):
        following.write(symbols)
    assert following.offered[1] == due


def test_of_equal_places_the_next_one_is_taken() -> None:
    text = "".join(f"row {n}: total = total + value;\n" for n in range(20))
    following = Following(text)
    following.write(text[: text.index("row 5")])
    following.write("total = total + value;\n")
    assert following.offered[1][:5] == "row 5"  # the line was inserted a second time


@pytest.mark.parametrize("is_ahead", [False, True])
def test_far_away_it_is_found_too(is_ahead: bool) -> None:
    filler = "".join(f"{n} bottles stand on the wall\n" for n in range(400))
    text = f"begin here\n{filler}the very last line is this one\n"
    following = Following(text)
    following.write("begin here\n" if is_ahead else text[: text.index("the very")])
    following.write("Xthe very last line" if is_ahead else "begin he")
    assert following.offered[1][:13] == (" is this one\n" if is_ahead else "re\n0 bottles ")


def test_ids_are_followed_as_text_is() -> None:
    source = PredictionSource([5, 70_000, 9, 55_296, 3, 8, 12, 5, 6], 1, 100_000)
    source.start([[1]])
    assert source._look_up(0, 2) == (8, [5, 70_000])  # the beginning counts as a match
    source._written(0, [5, 70_000, 1], 2)  # one replaced
    assert source._look_up(0, 2) == (0, [55_296, 3])
    source._written(0, [8, 12], 0)  # and two left out
    assert source._look_up(0, 9) == (2, [5, 6])


def test_a_guess_that_was_right_is_followed_from_there() -> None:
    following = Following("one two three four")
    following.write("one too")
    assert following.offered == (0, " three four")
    following.write(" three")
    assert following.offered == (len("o three"), " four")


def test_after_its_end_a_text_has_nothing_to_offer() -> None:
    following = Following("short")
    following.write("short")
    assert following.offered == (0, "")
    following.write("er, and all")
    assert following.offered == (0, "")
