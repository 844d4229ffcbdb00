"""A known text as ids that follow the output: those of the whole text's encoding, and no token across the boundary."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tokenizers import small_tokenizer
from tests.unit.adapters.strategies import SETTINGS, texts
from uag.adapters import TokenizerAdapter, from_tokenizer
from uag.adapters.window import last_bytes
from uag.drafting.texts.known_text import KnownText
from uag.drafting.texts.target_ids import TargetIds

NAMES = ["byte_level", "byte_level_llama3", "byte_level_digits", "llama", "byt5"]


def target_ids(text: bytes, adapter: TokenizerAdapter) -> TargetIds:
    return TargetIds(KnownText(text.decode("latin-1"), adapter))


@pytest.mark.parametrize("name", NAMES)
@SETTINGS
@given(before=texts(), text=texts(30), where=st.integers(0, 200))
def test_behind_ids_of_the_whole_text_come_the_next_ones(name: str, before: str, text: str, where: int) -> None:
    """If the output is a prefix of the whole text's encoding, the candidates are the rest of that encoding."""
    adapter = from_tokenizer(small_tokenizer(name))
    whole = adapter.encode_continuation((before + text).encode())
    ends = [len(adapter.join(whole[: n + 1]) or b"") for n in range(len(whole))]
    size = len(before.encode())
    cuts = [n for n, end in enumerate(ends) if end >= size]
    if not cuts:
        return
    index = cuts[where % len(cuts)]
    ids = target_ids(text.encode(), adapter).ids(ends[index] - size, whole[: index + 1], 40)
    context = last_bytes(adapter, whole[: index + 1])
    start = ends.index(ends[index] - len(context)) + 1 if ends[index] > len(context) else 0
    if adapter.encode_continuation(adapter.join(whole[start:]) or b"") == whole[start:]:
        assert ids == whole[index + 1 : index + 41]
    else:  # the preceding ids would differ without the text before them
        assert (adapter.join(whole) or b"")[ends[index] :].startswith(adapter.join(ids) or b"")


@pytest.mark.parametrize("name", [*NAMES, "unigram"])
@SETTINGS
@given(written=texts(), text=texts(30), place=st.integers(0, 100), num=st.integers(1, 60))
def test_joined_bytes_are_the_texts(name: str, written: str, text: str, place: int, num: int) -> None:
    adapter = from_tokenizer(small_tokenizer(name))
    data = text.encode()
    place = min(place, len(data))
    ids = target_ids(data, adapter).ids(place, adapter.encode_continuation(written.encode()), num)
    assert len(ids) <= num
    found = adapter.join(ids)
    assert found is not None
    assert data[place:].startswith(found)
    assert found or place == len(data)


def test_no_token_reaches_across_a_join_that_the_target_has_cut() -> None:
    adapter = from_tokenizer(small_tokenizer("byte_level"))
    text = b"the quick brown fox jumps"
    whole = adapter.encode_continuation(text)
    place = len(adapter.join(whole[:2]) or b"") + 2  # in the middle of a token
    written = [*whole[:2], *adapter.encode_continuation(text[place - 2 : place])]
    ids = target_ids(text, adapter).ids(place, written, 50)
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
    known = KnownText(text.decode("latin-1"), adapter)
    reused = TargetIds(known)
    place, done = 0, 0
    while done < len(whole):
        ids = reused.ids(place, whole[max(done - 8, 0) : done], 16)
        assert ids == whole[done : done + 16]
        done += len(ids)
        place += len(known.symbols_of(ids))
    assert max(sizes) < 700
    assert sum(sizes) < 2 * len(text)


def test_a_text_begins_as_the_target_would_write_it() -> None:
    adapter = from_tokenizer(small_tokenizer("llama"))
    bos = adapter.controls.bos_id
    assert bos is not None
    word = adapter.encode_continuation(b" word")
    assert KnownText.of_text("Hello", adapter, [bos]).symbols == " Hello"
    assert KnownText.of_text("Hello", adapter, [*word, bos]).symbols == "Hello"
    assert KnownText.of_text("Hello", adapter, [bos, *word]).symbols == "Hello"
    lossy = from_tokenizer(small_tokenizer("wordpiece"))
    assert KnownText.of_text("The Fox", lossy, [*lossy.encode_continuation(b"so")]).symbols == "the fox"


def test_words_end_behind_letters_of_any_script() -> None:
    adapter = from_tokenizer(small_tokenizer("byt5"))
    known = KnownText.of_text("naïve_2 日本 x", adapter, [3])
    for start, word in ((0, "naïve_2"), (len("naïve_2 ".encode()), "日本"), (len("naïve_2".encode()), "")):
        assert known.word_end(start) == start + len(word.encode())
