"""SentencePiece BPE and Unigram, in Rust and with the library: prefixes, byte tokens, space marks, names."""

from typing import Any

import pytest

from tests.support.tokenizers import encode_start, holds, llama, small_tokenizer
from uag.adapters import Place, from_tokenizer

WITH_BYTES = ["llama", "llama_prepend", "unigram", "sentencepiece_library", "sentencepiece_library_unigram"]


@pytest.mark.parametrize("name", [*WITH_BYTES, "unigram_raw"])
def test_encoding_returns_the_plain_piece_not_its_byte_twin(name: str) -> None:
    adapter = from_tokenizer(small_tokenizer(name))
    vocabulary: dict[str, int] = adapter.tokenizer.get_vocab()
    plain, twin = vocabulary["a"], vocabulary["<0x61>"]
    assert adapter.token_bytes[plain] == adapter.token_bytes[twin] == b"a"
    assert adapter.encode_continuation(b"a") == [plain]


@pytest.mark.parametrize("name", WITH_BYTES)
def test_a_space_is_added_at_the_start_of_a_text_only(name: str) -> None:
    adapter = from_tokenizer(small_tokenizer(name))
    assert adapter.start_prefix == b" "
    assert adapter.join(encode_start(adapter, b"one")) == b" one"
    assert encode_start(adapter, b"") == []


@pytest.mark.parametrize(
    ("scheme", "after_control", "doubled"), [("first", b"", False), ("always", b" ", False), (None, b" ", True)]
)
def test_prefixes_are_the_tokenizers_own(scheme: str | None, after_control: bytes, doubled: bool) -> None:
    tokenizer = llama(scheme)
    adapter = from_tokenizer(tokenizer)
    assert adapter.control_prefix == after_control
    own = tokenizer.encode("</s>the dog", add_special_tokens=False)
    assert own[1:] == encode_start(adapter, b"the dog", Place.AFTER_CONTROL)
    assert encode_start(adapter, b" the") == tokenizer.encode(" the", add_special_tokens=False)
    assert adapter.join(encode_start(adapter, b" the")) == (b"  the" if doubled else b" the")


@pytest.mark.parametrize("name", ["llama_no_bytes", "unigram_lossy", "sentencepiece_library_no_bytes"])
def test_unknown_characters_are_lost_without_byte_fallback(name: str) -> None:
    adapter = from_tokenizer(small_tokenizer(name))
    assert adapter.loss
    assert holds(adapter, b" the")
    assert not holds(adapter, "the ☃".encode())
    assert not holds(adapter, b"\xf0\x9f")
    assert adapter.encode_continuation("☃".encode()) == [adapter.controls.unk_id]


@pytest.mark.parametrize("name", ["sentencepiece_library", "sentencepiece_library_unigram"])
def test_the_library_returns_the_tokenizers_own_ids(name: str) -> None:
    tokenizer: Any = small_tokenizer(name)
    adapter = from_tokenizer(tokenizer)
    for text in ("the quick brown fox", "Once upon a time, there was 12345.", "лиса прыгает", "日本語 😀"):
        assert encode_start(adapter, text.encode()) == tokenizer.encode(text, add_special_tokens=False)


def test_two_loads_have_one_fingerprint_and_two_schemes_have_not() -> None:
    prints = [from_tokenizer(t).fingerprint for t in (llama(), llama(), llama("always"), llama(None))]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3
