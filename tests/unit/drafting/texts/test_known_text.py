"""A known text as ids that follow the output; see test_window.py for their encoding."""

from collections.abc import Sequence

import pytest

from tests.support.tokenizers import small_tokenizer
from uag.adapters import TokenizerAdapter, from_tokenizer
from uag.drafting.texts import follower
from uag.drafting.texts.follower import Follower, known_ids


def ids_of(text: str, adapter: TokenizerAdapter, prompt: Sequence[int]) -> list[int]:
    return [ord(symbol) for piece in known_ids(text, adapter, prompt) for symbol in piece]


def test_no_token_reaches_across_a_join_that_the_target_has_cut() -> None:
    adapter = from_tokenizer(small_tokenizer("byte_level"))
    text = b"the quick brown fox jumps"
    whole = adapter.encode_continuation(text)
    place = len(adapter.join(whole[:2]) or b"") + 2  # in the middle of a token
    written = [*whole[:2], *adapter.encode_continuation(text[place - 2 : place])]
    assert adapter.join(ids_of(text[place:].decode(), adapter, written)) == text[place:]


def test_the_pieces_of_a_long_text_are_its_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "_PIECE", 100)
    adapter = from_tokenizer(small_tokenizer("byte_level"))
    text = "the quick brown fox jumps over the lazy dog, " * 30
    assert ids_of(text, adapter, [5]) == adapter.encode_continuation(text.encode())
    assert len(list(known_ids(text, adapter, [5]))) > 10


def test_a_text_begins_as_the_target_would_write_it() -> None:
    def known(text: str, adapter: TokenizerAdapter, prompt: list[int]) -> bytes | None:
        return adapter.join(ids_of(text, adapter, prompt))

    adapter = from_tokenizer(small_tokenizer("llama"))
    bos = adapter.controls.bos_id
    assert bos is not None
    word = adapter.encode_continuation(b" word")
    assert known("Hello", adapter, [bos]) == b" Hello"
    assert known("Hello", adapter, [*word, bos]) == b"Hello"
    assert known("Hello", adapter, [bos, *word]) == b"Hello"
    lossy = from_tokenizer(small_tokenizer("wordpiece"))
    assert known("The Fox", lossy, lossy.encode_continuation(b"so")) == b"the fox"
    assert known("The ᚠ quick Fox", lossy, lossy.encode_continuation(b"so")) == b"the quick fox"


def test_a_replaced_word_ends_behind_letters_of_any_script() -> None:
    adapter = from_tokenizer(small_tokenizer("byt5"))
    for start, word in ((0, "naïve_2"), (len("naïve_2 ".encode()), "日本")):
        text = "naïve_2 日本 x".encode()
        follows = Follower(text.decode(), adapter)
        follows.write([3 + byte for byte in text[:start] + b"!"])
        assert [guess.place for guess in follows.guesses()] == [start + len(word.encode())]


def test_only_as_much_of_a_long_text_is_encoded_as_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "_PIECE", 300)
    adapter = from_tokenizer(small_tokenizer("byt5"))
    text = "".join(f"value {n};\n" for n in range(500))
    right, wrong = Follower(text, adapter), Follower(text, adapter)
    for start in range(0, len(text), 50):
        right.write([3 + byte for byte in text[start : start + 50].encode()])
        wrong.write([3 + byte for byte in b"something else"])
    assert (right.place, right.is_lost, len(right.known)) == (len(text), False, len(text))
    assert len(wrong.known) < 300
