"""A known text as ids behind what was written: what the whole text's encoding says, and no token across the join."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tokenizers import small_tokenizer
from tests.unit.adapters.strategies import SETTINGS, texts
from uag.adapters import AlignmentWindow, Place, from_tokenizer
from uag.drafting.texts.known_text import Known
from uag.drafting.texts.target_ids import Joined, Spelling

NAMES = ["byte_level", "byte_level_llama3", "byte_level_digits", "llama", "byt5"]


@pytest.mark.parametrize("name", NAMES)
@SETTINGS
@given(before=texts(), text=texts(30), where=st.integers(0, 200))
def test_behind_ids_of_the_whole_text_come_the_next_ones(name: str, before: str, text: str, where: int) -> None:
    """Where the output is what the whole text's encoding begins with, the candidates are how that goes on."""
    adapter = from_tokenizer(small_tokenizer(name))
    whole = adapter.encode_continuation((before + text).encode())
    ends = [len(adapter.join(whole[: n + 1]) or b"") for n in range(len(whole))]
    size = len(before.encode())
    cuts = [n for n, end in enumerate(ends) if end >= size]
    if not cuts:
        return
    index = cuts[where % len(cuts)]
    joined = Joined(Known.of_bytes(text.encode()), Spelling(adapter))
    ids = joined.ids(ends[index] - size, whole[: index + 1], 40)
    context = AlignmentWindow(adapter, whole[: index + 1])._context()
    start = ends.index(ends[index] - len(context)) + 1 if ends[index] > len(context) else 0
    if adapter.encode_continuation(adapter.join(whole[start:]) or b"") == whole[start:]:
        assert ids == whole[index + 1 : index + 41]
    else:  # the ids in front would be others without what stands before them
        assert (adapter.join(whole) or b"")[ends[index] :].startswith(adapter.join(ids) or b"")


@pytest.mark.parametrize("name", [*NAMES, "unigram"])
@SETTINGS
@given(written=texts(), text=texts(30), place=st.integers(0, 100), num=st.integers(1, 60))
def test_joined_bytes_are_the_texts(name: str, written: str, text: str, place: int, num: int) -> None:
    adapter = from_tokenizer(small_tokenizer(name))
    data = text.encode()
    place = min(place, len(data))
    joined = Joined(Known.of_bytes(data), Spelling(adapter))
    ids = joined.ids(place, adapter.encode_continuation(written.encode()), num)
    assert len(ids) <= num
    found = adapter.join(ids)
    assert found is not None
    assert data[place:].startswith(found)
    assert found or place == len(data)
    assert joined.is_end(place, ids) == (found == data[place:])


def test_no_token_reaches_across_a_join_that_the_target_has_cut() -> None:
    adapter = from_tokenizer(small_tokenizer("byte_level"))
    text = b"the quick brown fox jumps"
    whole = adapter.encode_continuation(text)
    place = len(adapter.join(whole[:2]) or b"") + 2  # in the middle of a token
    written = [*whole[:2], *adapter.encode_continuation(text[place - 2 : place])]
    ids = Joined(Known.of_bytes(text), Spelling(adapter)).ids(place, written, 50)
    assert adapter.join(ids) == text[place:]


def test_a_long_text_is_encoded_in_pieces_and_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = from_tokenizer(small_tokenizer("byte_level"))
    text = ("the quick brown fox jumps over the lazy dog, " * 200).encode()
    whole = adapter.encode_continuation(text)
    sizes: list[int] = []
    encode = adapter.encode_continuation

    def counting(data: bytes) -> list[int]:
        sizes.append(len(data))
        return encode(data)

    monkeypatch.setattr(adapter, "encode_continuation", counting)
    joined, spelling = Joined(Known.of_bytes(text), Spelling(adapter)), Spelling(adapter)
    place, done = 0, 0
    while done < len(whole):
        ids = joined.ids(place, whole[max(done - 8, 0) : done], 16)
        assert ids == whole[done : done + 16]
        done += len(ids)
        place += len(spelling.symbols(ids))
    assert max(sizes) < 700
    assert sum(sizes) < 2 * len(text)


def test_a_text_begins_as_the_target_would_write_it() -> None:
    spelling = Spelling(from_tokenizer(small_tokenizer("llama")))
    controls = spelling.adapter.controls if spelling.adapter else None
    assert controls is not None
    bos = controls.bos_id
    assert bos is not None
    word = from_tokenizer(small_tokenizer("llama")).encode_continuation(b" word")
    assert spelling.place([bos]) is Place.START
    assert spelling.place([*word, bos]) is Place.AFTER_CONTROL
    assert spelling.place([bos, *word]) is Place.CONTINUATION
    assert spelling.prepared("Hello", Place.START) == b" Hello"
    assert spelling.prepared("Hello", Place.CONTINUATION) == b"Hello"
    lossy = Spelling(from_tokenizer(small_tokenizer("wordpiece")))
    assert lossy.prepared("The Fox", Place.CONTINUATION) == b"the fox"
