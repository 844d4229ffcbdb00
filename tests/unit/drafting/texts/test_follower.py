"""Following a text: where it continues after an edit."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tokenizers import small_tokenizer
from tests.unit.adapters.strategies import SETTINGS
from uag.adapters import from_tokenizer
from uag.drafting.texts.follower import FOLLOWS, MATCHES, REPLACED, Follower, Guess

LINES = [f"    value_{n} = call_{n}(argument_{n}, {n})\n" for n in range(12)]
edits = st.dictionaries(
    st.integers(0, len(LINES) - 1),
    st.tuples(st.text(st.sampled_from("abcxyz_ (),\n"), max_size=30), st.integers(0, 30)),
    max_size=4,
)
"""By line: the text inserted before the line, and the number of its first characters to drop."""


def follower_of(text: str) -> Follower:
    """Follow a text with a tokenizer whose ids are bytes."""
    return Follower(text, from_tokenizer(small_tokenizer("byt5")))


def write(follower: Follower, text: str) -> None:
    follower.write(small_tokenizer("byt5")(text, add_special_tokens=False)["input_ids"])


@SETTINGS
@given(edits, st.integers(0, 10), st.integers(1, 9))
def test_a_match_is_one_and_after_enough_text_the_place_is_found(
    changes: dict[int, tuple[str, int]], last: int, size: int
) -> None:
    """All lines differ, so after an unedited line there is only one position, regardless of earlier edits."""
    changes.pop(last, None)
    lines = [changes.get(n, ("", 0))[0] + line[changes.get(n, ("", 0))[1] :] for n, line in enumerate(LINES)]
    text, output = "".join(LINES), "".join(lines[: last + 1])
    follower = follower_of(text)
    for start in range(0, len(output), size):
        write(follower, output[start : start + size])
        for guess in follower.guesses():
            kind, level = guess.evidence
            num_equal = {FOLLOWS: guess.run, MATCHES: (2, 4, 8)[min(level, 2)], REPLACED: 0}[kind]
            written = output[: start + size]
            assert text.endswith(written[len(written) - num_equal :], 0, guess.place)
    assert follower.guesses()[0].place == text.index(LINES[last]) + len(LINES[last])


def offered(text: str, output: str, guesses: list[Guess], done: int) -> list[str]:
    """The continuation of the text at each guess, as far as the output agrees."""
    lines = []
    for guess in guesses:
        size = 0
        while output[done + size : done + size + 1] == text[guess.place + size : guess.place + size + 1] != "":
            size += 1
        lines.append(output[done : done + size])
    return lines


@pytest.mark.parametrize(
    ("old", "new", "written", "due"),
    [
        ("f(a, b)\n    return a", "f(x, b)\n    return a", "f(x", ", b)\n    return a"),  # a word replaced
        ("f(old, b) + 1", "f(new_one, b) + 1", "f(new_one", ", b) + 1"),
        ("one two three four fifteen six", "one two fifteen six", "one two fifteen", " six"),  # words left out
        ("alpha beta gamma delta", "alpha more beta gamma delta", "alpha more beta gam", "ma delta"),  # inserted
        ("value = 1\n", "\n\nvalue = 1\n", "\n\nvalue = ", "1\n"),  # text inserted before it
    ],
)
def test_behind_a_small_edit_the_text_goes_on(old: str, new: str, written: str, due: str) -> None:
    assert new == written + due
    follower = follower_of(old)
    for symbol in re.findall(r"\w+|\W", written):
        write(follower, symbol)
    assert due in offered(old, new, follower.guesses(), len(written))


def test_of_equal_places_the_next_one_is_taken() -> None:
    text = "".join(f"row {n}: total = total + value;\n" for n in range(20))
    follower = follower_of(text)
    write(follower, text[: text.index("row 5")])
    write(follower, "total = total + value;\n")
    assert follower.guesses()[0].place == text.index("row 5")  # the line was inserted a second time


@pytest.mark.parametrize("is_ahead", [False, True])
def test_far_away_it_is_found_too(is_ahead: bool) -> None:
    filler = "".join(f"{n} bottles stand on the wall\n" for n in range(400))
    text = f"begin here\n{filler}the very last line is this one\n"
    follower = follower_of(text)
    write(follower, "begin here\n" if is_ahead else text[: text.index("the very")])
    write(follower, "Xthe very last line" if is_ahead else "begin he")
    guess = follower.guesses()[0]
    assert text[guess.place :].startswith(" is this one\n" if is_ahead else "re\n0 bottles")
    assert guess.evidence[0] == MATCHES


def test_ids_are_followed_as_text_is() -> None:
    follower = Follower((5, 70_000, 9, 55_296, 3, 8, 12, 5, 6))
    follower.write([5, 70_000, 1])  # one replaced
    (guess,) = follower.guesses()
    assert (guess.place, guess.evidence) == (3, (REPLACED, 0))
    follower.write([8, 12])  # and two left out
    (guess,) = follower.guesses()
    assert (guess.place, guess.evidence) == (7, (MATCHES, 0))
    assert follower.continuation(guess, 9)[0] == [5, 6]


def test_a_guess_that_was_right_is_followed_from_there() -> None:
    follower = follower_of("one two three four")
    write(follower, "one too")
    (guess,) = follower.guesses()
    assert guess.evidence[0] == REPLACED
    follower.continue_at(guess)
    write(follower, " three")
    assert follower.guesses() == [Guess(len("one two three"), (FOLLOWS, 3), len(" three"))]


def test_after_its_end_a_text_has_nothing_to_offer() -> None:
    follower = follower_of("short")
    write(follower, "short")
    assert not follower.has_more
    assert follower.continuation(follower.guesses()[0], 5) == ([], [])
    write(follower, "er, and other words")
    assert follower.guesses() == []
