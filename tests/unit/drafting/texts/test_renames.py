"""Words that the output writes otherwise than the text that it follows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.tokenizers import small_tokenizer
from tests.unit.adapters.strategies import SETTINGS
from uag.adapters import from_tokenizer
from uag.drafting.texts.follower import Follower
from uag.drafting.texts.grounds import WORD, Learnt
from uag.drafting.texts.known_text import Known
from uag.drafting.texts.prediction import PredictionSource
from uag.drafting.texts.renames import Renames
from uag.drafting.texts.target_ids import Joined, Spelling

OLD = "def f(count, other):\n    count = count + other\n    recount(count)\n    return count\n"


def renamed(new: dict[str, str]) -> Renames:
    found = Renames()
    found.new = new
    return found


def test_a_word_is_renamed_as_a_whole_and_nowhere_else() -> None:
    piece, places = renamed({"count": "total_sum"}).apply(OLD, 0, len(OLD))
    assert piece == OLD.replace("count", "total_sum").replace("retotal_sum", "recount")
    assert len(places) == len(piece) + 1
    assert places == sorted(places)
    start = piece.index("total_sum")
    assert (places[start], places[start + len("total_sum")]) == (OLD.index("count"), OLD.index("count") + len("count"))
    middle = OLD.index("count") + 2
    assert renamed({"count": "n"}).apply(OLD, middle, middle + 6)[0] == OLD[middle : middle + 6]


@SETTINGS
@given(st.lists(st.sampled_from(["count", "other", "re", "x", " ", "(", ", ", "\n"]), max_size=30), st.integers(1, 9))
def test_an_output_with_the_new_name_is_followed_to_its_end(parts: list[str], size: int) -> None:
    text = "".join(parts)
    follower = Follower(Known.of_bytes(text.encode()))
    follower.renames.new = {"count": "number", "other": "another"}
    output = follower.renames.apply(text, 0, len(text))[0]
    pieces = output.replace("number", "\0number\0").replace("another", "\0another\0").split("\0")  # new words at once
    for piece in pieces:
        follower.write(piece)
    assert (follower.place, follower.is_lost) == (len(text), False)


def test_a_name_that_was_replaced_once_is_offered_so_the_next_time() -> None:
    adapter = from_tokenizer(small_tokenizer("byte_level"))
    spelling = Spelling(adapter)
    source = PredictionSource([[OLD]], adapter, Learnt(), 10_000)
    source.start([[1]])
    (path,) = source._rows[0]
    follower = path.follower
    for word in ("def f(", "total"):
        follower.write(word)
    (guess,) = [guess for guess in follower.guesses() if guess.ground[0] == WORD]
    follower.go_on_at(guess)
    assert follower.renames.new == {"count": "total"}
    ids = path.joined.ids(follower.place, adapter.encode_continuation(b"def f(total"), 200)
    due = OLD.replace("count", "total").replace("retotal", "recount").partition("(total")[2]
    assert spelling.symbols(ids) == due
    for number in range(len(ids)):
        follower.write(spelling.symbols(ids[number : number + 1]))
        if follower.is_lost:  # in the middle of a new word that is several tokens
            break
    else:
        assert follower.place == len(OLD)


def test_a_name_that_is_written_as_it_was_is_offered_so_again() -> None:
    follower = Follower(Known.of_bytes(OLD.encode()))
    follower.renames.new = {"count": "total", "other": "another"}
    follower.write("def f(count")
    follower.keep_word()
    assert follower.renames.new == {"other": "another"}
    follower.write(", oth")
    follower.keep_word()
    assert follower.renames.new == {}


def test_only_words_are_learnt_and_a_few_of_them() -> None:
    renames = Renames()
    assert not renames.learn("a + b", 2, 3, "a - ")  # signs
    assert not renames.learn("x = 1", 0, 1, "y")  # too short to be told from others
    assert not renames.learn("count", 0, 5, "count")
    for number in range(6):
        assert renames.learn(f"old_{number} = 1", 0, 5, f"new_{number}")
    assert len(renames.new) == 4
    assert renames.learn("one argument here", 6, 12, "one argue")  # behind a common beginning
    assert renames.new["argument"] == "argue"


def test_joined_ids_follow_renames_that_come_later() -> None:
    adapter = from_tokenizer(small_tokenizer("byte_level"))
    renames, known = Renames(), Known.of_bytes(OLD.encode())
    joined = Joined(known, Spelling(adapter), renames)
    assert adapter.join(joined.ids(0, [], 500)) == OLD.encode()
    renames.new["other"] = "second"
    assert adapter.join(joined.ids(0, [], 500)) == OLD.replace("other", "second").encode()
