"""A text that is followed: where it goes on behind an edit, and what a round costs."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.adapters.strategies import SETTINGS
from uag.drafting.texts import grounds
from uag.drafting.texts.follower import Follower, Guess
from uag.drafting.texts.known_text import Known

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


def known(text: str) -> Known:
    return Known.of_bytes(text.encode())


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
    follower = Follower(known(text))
    written = ""
    for number in range(len(output)):
        piece = output[len(written) : len(written) + sizes[number % len(sizes)]]
        if not piece:
            break
        follower.write(piece)
        written += piece
        guesses = follower.guesses()
        assert len(guesses) <= 3
        assert all(0 <= guess.place <= len(text) for guess in guesses)
        if not follower.is_lost:
            assert ends_at(text, follower.place, written) >= min(follower.run, 1)
            assert guesses == [Guess(follower.place, (grounds.FOLLOWS, follower.level(follower.run)), follower.run)]
        for guess in guesses:
            if guess.ground[0] in (grounds.INSERTED, grounds.NEAR, grounds.BEHIND, grounds.FAR):
                tokens = 3 if guess.ground[0] == grounds.FAR else (8, 4, 2, 1)[guess.ground[1]]
                assert ends_at(text, guess.place, written) >= 4 * tokens


@SETTINGS
@given(edits, st.integers(0, 11))
def test_behind_edits_the_place_is_found_again(changes: list[tuple[int, str, str]], last: int) -> None:
    """Every line is another, so behind enough of one there is one place, whatever was changed before."""
    text, changes = "".join(LINES), [change for change in changes if change[0] != last]
    output = edited(changes)
    follower = Follower(known(text))
    end = output.index(LINES[last]) + len(LINES[last])
    for start in range(0, end, 3):
        follower.write(output[start : min(start + 3, end)])
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
        ("a = 1\nb = 2\nc = 3\n", "a = 1\nlonger = 9\nc = 3\n", "a = 1\nlonger = 9\n", "c = 3\n"),  # a line replaced
        ("one two three four five six", "one two five six", "one two five", " six"),  # words left out
        ("alpha beta gamma delta", "alpha more beta gamma delta", "alpha more beta", " gamma delta"),  # put in
        ("x = 1\n", "\n\nx = 1\n", "\n\nx = ", "1\n"),  # something before it
    ],
)
def test_behind_a_small_edit_the_text_goes_on(old: str, new: str, written: str, due: str) -> None:
    assert new == written + due
    follower = Follower(known(old))
    for symbol in re.findall(r"\w+|\W", written):
        follower.write(symbol)
    assert due in offered(old, new, follower.guesses(), len(written))


def test_of_equal_places_the_next_ones_ahead_are_taken() -> None:
    text = "".join(f"row {n}: total = total + value;\n" for n in range(20))
    follower = Follower(known(text))
    follower.write(text[: text.index("row 5")])
    follower.write("total = total + value;\n")
    inserted, left_out, _ = follower.guesses()
    assert (inserted.place, inserted.ground[0]) == (text.index("row 5"), grounds.INSERTED)
    assert (left_out.place, left_out.ground[0]) == (text.index("row 6"), grounds.NEAR)


def test_far_away_it_is_found_by_the_index() -> None:
    filler = "".join(f"{n} bottles stand on the wall\n" for n in range(2_000))
    text = "begin here\n" + filler + "the very last line is this one\n"
    follower = Follower(known(text))
    follower.write("begin here\nthe very last line")
    (guess, *_) = follower.guesses()
    assert text[guess.place :] == " is this one\n"
    assert guess.ground[0] == grounds.FAR


def test_ids_are_followed_as_text_is() -> None:
    ids = [5, 70_000, 9, 55_296, 3, 8, 12, 5, 6]
    follower = Follower(Known.of_ids(ids))
    follower.write("".join(map(chr, [5, 70_000, 1])))  # one replaced
    (guess,) = follower.guesses()
    assert (guess.place, guess.ground) == (3, (grounds.WORD, 0))
    follower.write(chr(8))  # and two left out
    (guess, _) = follower.guesses()
    assert (guess.place, guess.ground[0]) == (6, grounds.NEAR)


def test_a_proven_guess_is_followed_from_there() -> None:
    follower = Follower(known("one two three four"))
    follower.write("one too")
    (guess, *_) = follower.guesses()
    assert guess.ground[0] == grounds.WORD
    follower.go_on_at(guess)
    follower.write(" three")
    (guess,) = follower.guesses()
    assert guess.ground[0] == grounds.FOLLOWS
    assert guess.place == len("one two three")


def test_behind_its_end_a_text_has_nothing_to_say_but_that_it_ends() -> None:
    follower = Follower(known("short"))
    follower.write("short")
    assert [guess.place for guess in follower.guesses()] == [5]
    follower.write("er, and other words")
    assert follower.guesses() == []


class Counting(str):
    """A text that counts what is searched through in it."""

    num_searched = 0

    def find(self, sub: str, start: int = 0, end: int | None = None) -> int:  # type: ignore[override]
        Counting.num_searched += min(len(self) if end is None else end, len(self)) - start
        return super().find(sub, start, len(self) if end is None else end)

    def rfind(self, sub: str, start: int = 0, end: int | None = None) -> int:  # type: ignore[override]
        Counting.num_searched += min(len(self) if end is None else end, len(self)) - start
        return super().rfind(sub, start, len(self) if end is None else end)


def searched(size: int) -> int:
    """How many symbols some rounds look through in a text of about `size` that they have lost."""
    unit = "some words stand here, and others there, but never what is looked for; "
    text = known(unit * (size // len(unit)))
    text.symbols = Counting(text.symbols)
    follower = Follower(text)
    follower.write(unit * 2 + "0123456789 ")
    follower.guesses()  # the index is made here
    Counting.num_searched = 0
    for number in range(20):
        follower.write(f"x{number} ")
        follower.guesses()
    return Counting.num_searched


def test_a_round_in_a_long_text_looks_through_no_more_than_in_a_shorter_one() -> None:
    assert 0 < searched(1_000_000) == searched(10_000)
