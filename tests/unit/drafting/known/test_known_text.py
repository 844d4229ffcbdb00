"""A known text as ids that follow the output; see test_window.py for their encoding."""

from collections.abc import Sequence

import pytest

from tests.support.tokenizers import small_tokenizer
from uag.adapters import TokenizerAdapter, from_tokenizer
from uag.drafting.known import prediction
from uag.drafting.known.prediction import PredictionSource, known_ids


def ids_of(text: str, adapter: TokenizerAdapter, prompt: Sequence[int]) -> list[int]:
    return [token_id for piece in known_ids(text, adapter, prompt) for token_id in piece]


def test_no_token_reaches_across_a_join_that_the_target_has_cut() -> None:
    adapter = from_tokenizer(small_tokenizer("byte_level"))
    text = b"the quick brown fox jumps"
    whole = adapter.encode_continuation(text)
    place = len(adapter.join(whole[:2]) or b"") + 2  # in the middle of a token
    written = [*whole[:2], *adapter.encode_continuation(text[place - 2 : place])]
    assert adapter.join(ids_of(text[place:].decode(), adapter, written)) == text[place:]


def test_the_pieces_of_a_long_text_are_its_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "_PIECE", 100)
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


def test_only_as_much_of_a_long_text_is_encoded_as_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "_PIECE", 300)
    adapter = from_tokenizer(small_tokenizer("byt5"))
    text = "".join(f"value {n};\n" for n in range(500))
    source = PredictionSource([text + "end", "other\n" * 500], 2, 1000, lambda: adapter)
    source.start([[5], [5]])
    num_encoded = []
    for start in range(0, len(text), 50):
        source._look_up(0, 50)
        source._written(0, [3 + byte for byte in text[start : start + 50].encode()], 50)
        source._look_up(1, 50)
        source._written(1, [3 + byte for byte in b"something else"], 0)
        num_encoded.append([len(each.known.ids) for each in source._rows if each])
    for number, (first, _) in enumerate(num_encoded, 1):
        assert min(50 * number, len(text)) <= first <= 50 * number + 600
    assert source._look_up(0, 9)[1] == [3 + byte for byte in b"end"]
    assert {wrong for _, wrong in num_encoded} == {num_encoded[0][1]}
    assert num_encoded[0][1] < 300
