"""A text that is followed: where it continues after an edit."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tokenizers import small_tokenizer
from tests.unit.adapters.strategies import SETTINGS
from uag.adapters import from_tokenizer
from uag.drafting.texts.follower import FOLLOWS, MATCHES, REPLACED, Follower, Guess
from uag.drafting.texts.known_text import KnownText

LINES = [f"    value_{n} = call_{n}(argument_{n}, {n})\n" for n in range(12)]
PROVES = 8 * 4 + 4
"""Symbols behind an edit that prove a place: a match, and the end of the edit's own token."""

edits = st.lists(
    st.tuples(
        st.integers(0, len(LINES) - 1),
        st.sampled_from(["delete", "insert", "replace", "word", "character"]),
        st.text(st.sampled_from("abcxyz_ (),\n"), min_size=1, max_size=30),
    ),
    max_size=4,
    unique_by=lambda edit: edit[0],
)


def edited(changes: list[tuple[int, str, str]]) -> str:
    """What the output is where it changes the known text so."""
    lines = list(LINES)
    for place, kind, text in changes:
        if kind == "delete":
            lines[place] = ""
        elif kind == "insert":
            lines[place] = f"    {text}\n{lines[place]}"
        elif kind == "replace":
            lines[place] = f"{text}\n"
        elif kind == "word":
            lines[place] = re.sub(r"argument_\d+", text, lines[place])
        else:
            lines[place] = lines[place][:7] + text[:1] + lines[place][7:]
    return "".join(lines)


def follower_of(text: str) -> Follower:
    """Follow a text with a tokenizer whose ids are bytes."""
    return Follower(KnownText(text, from_tokenizer(small_tokenizer("byt5"))))


def write(follower: Follower, text: str) -> None:
    follower.write(small_tokenizer("byt5")(text, add_special_tokens=False)["input_ids"])


def ends_at(text: str, place: int, output: str) -> int:
    """How many of the output's last symbols stand before a place."""
    size = 0
    while size < min(place, len(output)) and text[place - 1 - size] == output[-1 - size]:
        size += 1
    return size


@SETTINGS
@given(edits, st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_a_place_is_always_one_where_the_output_ends(changes: list[tuple[int, str, str]], sizes: list[int]) -> None:
    text, output = "".join(LINES), edited(changes)
    follower = follower_of(text)
    written = ""
    for number in range(len(output)):
        piece = output[len(written) : len(written) + sizes[number % len(sizes)]]
        if not piece:
            break
        write(follower, piece)
        written += piece
        guesses = follower.guesses()
        assert len(guesses) <= 2
        assert all(0 <= guess.place <= len(text) for guess in guesses)
        if not follower.is_lost:
            assert ends_at(text, follower.place, written) >= min(follower.run, 1)
            assert [(guess.place, guess.evidence[0]) for guess in guesses] == [(follower.place, FOLLOWS)]
        for guess in guesses:
            if guess.evidence[0] == MATCHES:
                assert ends_at(text, guess.place, written) >= 4 * (2, 4, 8)[guess.evidence[1]]


@SETTINGS
@given(edits, st.integers(0, 10))
def test_behind_edits_the_place_is_found_again(changes: list[tuple[int, str, str]], last: int) -> None:
    """Every line is another, so behind enough of one there is one place, whatever was changed before."""
    text, changes = "".join(LINES), [change for change in changes if change[0] != last]
    output = edited(changes)
    follower = follower_of(text)
    end = output.index(LINES[last]) + len(LINES[last])
    for start in range(0, end, 3):
        write(follower, output[start : min(start + 3, end)])
        found = follower.guesses()
    assert len(LINES[last]) >= PROVES
    assert found[0].place == text.index(LINES[last]) + len(LINES[last])


def offered(text: str, output: str, guesses: list[Guess], done: int) -> list[str]:
    """What the text goes on with at each guess, as long as the output does so, too."""
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
        ("alpha beta gamma delta", "alpha more beta gamma delta", "alpha more beta gam", "ma delta"),  # put in
        ("value = 1\n", "\n\nvalue = 1\n", "\n\nvalue = ", "1\n"),  # something before it
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
    assert follower.guesses()[0].place == text.index("row 5")  # the line was put in a second time


@pytest.mark.parametrize("is_ahead", [False, True])
def test_far_away_it_is_found_too(is_ahead: bool) -> None:
    filler = "".join(f"{n} bottles stand on the wall\n" for n in range(2_000))
    text = f"begin here\n{filler}the very last line is this one\n"
    follower = follower_of(text)
    write(follower, "begin here\n" if is_ahead else text[: text.index("the very")])
    write(follower, "Xthe very last line" if is_ahead else "0 bottles stand")
    guess = follower.guesses()[0]
    assert text[guess.place :].startswith(" is this one\n" if is_ahead else " on the wall\n1 bottles")
    assert guess.evidence[0] == MATCHES


def test_ids_are_followed_as_text_is() -> None:
    follower = Follower(KnownText.of_ids([5, 70_000, 9, 55_296, 3, 8, 12, 5, 6]))
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
    assert follower.guesses() == [Guess(len("one two three"), (FOLLOWS, 1), len(" three"))]


def test_after_its_end_a_text_has_nothing_to_offer() -> None:
    follower = follower_of("short")
    write(follower, "short")
    assert not follower.has_more
    assert follower.continuation(follower.guesses()[0], 5) == ([], [])
    write(follower, "er, and other words")
    assert follower.guesses() == []
