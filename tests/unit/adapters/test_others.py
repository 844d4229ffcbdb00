"""ByT5, Mistral's backend, and tokenizers of unknown kinds such as WordPiece."""

from typing import Any

import pytest
from transformers.utils import is_mistral_common_available

from tests.support.tokenizers import encode_start, holds, mistral_common, slow_python, small_tokenizer
from uag.adapters import from_tokenizer

TEXTS = ("Hello world, 12345!", "日本語 😀 русский", "  a\n\n b")


def test_byt5_has_one_id_per_byte() -> None:
    adapter = from_tokenizer(small_tokenizer("byt5"))
    assert adapter.encode_continuation(b"A\xff") == [65 + 3, 255 + 3]
    assert adapter.token_bytes[3:259] == tuple(bytes([byte]) for byte in range(256))
    assert adapter.vocab_size == 384
    assert len(adapter.controls.control_ids) == 3 + 125


def test_wordpiece_is_lossy_and_continues_words() -> None:
    adapter = from_tokenizer(small_tokenizer("wordpiece"))
    vocabulary = adapter.tokenizer.get_vocab()
    assert adapter.encode_continuation(b"e") == [vocabulary["##e"]]
    assert adapter.encode_continuation(b" e") == [vocabulary["e"]]
    assert adapter.loss
    assert holds(adapter, b" the dog, and the fox")
    assert not holds(adapter, b" The dog")
    assert encode_start(adapter, b"the dog") == adapter.tokenizer.encode("the dog", add_special_tokens=False)


def test_an_unknown_tokenizer_is_used_through_its_public_methods() -> None:
    tokenizer = small_tokenizer("slow_python")
    adapter = from_tokenizer(tokenizer)
    assert adapter.encode_continuation(b"the fox") == tokenizer.encode("the fox", add_special_tokens=False)
    assert holds(adapter, "the лиса".encode())
    assert holds(adapter, b"don't </s>") == all(c in tokenizer.get_vocab() for c in "don't </s>")
    assert not holds(adapter, b"\xf0\x9f")


def test_a_replacement_character_does_not_stand_for_bytes() -> None:
    tokenizer: Any = slow_python()
    tokenizer._names[5] = "broken"
    decode = tokenizer.decode
    tokenizer.decode = lambda ids, **options: decode(ids, **options).replace("broken", "\ufffd")
    adapter = from_tokenizer(tokenizer)
    assert adapter.token_bytes[5] is None
    assert not any("\ufffd".encode() in (data or b"") for data in adapter.token_bytes)


def test_a_piece_that_ends_a_word_has_a_space() -> None:
    adapter = from_tokenizer(small_tokenizer("end_of_word"))
    vocabulary = adapter.tokenizer.get_vocab()
    assert adapter.token_bytes[vocabulary["the</w>"]] == b"the "
    assert adapter.token_bytes[vocabulary["e"]] == b"e"


def skip_without_mistral_common() -> None:
    if not is_mistral_common_available():
        pytest.skip("mistral-common is not installed, or not in a version that transformers takes")


@pytest.fixture(scope="module")
def tekken() -> Any:
    skip_without_mistral_common()
    return mistral_common()


def test_tekken_returns_its_own_ids(tekken: Any) -> None:
    adapter = from_tokenizer(tekken)
    assert adapter.family == "mistral_common"
    for text in TEXTS:
        assert adapter.encode_continuation(text.encode()) == tekken.encode(text, add_special_tokens=False)
    assert holds(adapter, b"[INST] <s> \xf0\x9f")
    assert (adapter.controls.bos_id, adapter.controls.eos_id) == (1, 2)
    assert adapter.token_bytes[:1000] == (None,) * 1000


def test_tekken_keeps_a_token_that_ends_in_an_unfinished_character(tekken: Any) -> None:
    adapter = from_tokenizer(tekken)
    assert len(adapter.encode_continuation(" 😀".encode()[:-1])) < len(adapter.encode_continuation(b" ")) + 3


@pytest.mark.parametrize("name", ["tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3"])
def test_the_sentencepiece_models_of_the_backend_are_supported(name: str) -> None:
    skip_without_mistral_common()
    tokenizer = mistral_common(name)
    adapter = from_tokenizer(tokenizer)
    assert adapter.family == "generic"
    assert adapter.is_exact
    for text in TEXTS:
        assert encode_start(adapter, text.encode()) == tokenizer.encode(text, add_special_tokens=False)
        assert holds(adapter, text.encode())
