"""Properties of every adapter, on small tokenizers of every family."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from tests.support.tokenizers import BUILDERS, encode_start, small_tokenizer
from tests.unit.adapters.strategies import SETTINGS, any_bytes, texts
from uag.adapters import TokenizerAdapter, from_tokenizer

NAMES = sorted(BUILDERS)
LOSSY = {
    "end_of_word", "llama_drops", "llama_no_bytes", "sentencepiece_library_no_bytes", "slow_python", "unigram_lossy",
    "wordpiece",
}  # fmt: skip

_KEPT: dict[str, TokenizerAdapter] = {}


def adapter_of(name: str) -> TokenizerAdapter:
    """Keep adapters across examples; the package's cache holds them only weakly."""
    if name not in _KEPT:
        _KEPT[name] = from_tokenizer(small_tokenizer(name))
    return _KEPT[name]


@pytest.mark.parametrize("name", sorted(set(NAMES) - LOSSY))
@SETTINGS
@given(data=any_bytes())
def test_joined_bytes_equal_the_text(name: str, data: bytes) -> None:
    adapter = adapter_of(name)
    assert adapter.is_exact
    assert adapter.join(adapter.encode_continuation(data)) == data
    assert adapter.join(encode_start(adapter, data)) in (data, adapter.start_prefix + data)


@pytest.mark.parametrize("name", sorted(LOSSY))
@SETTINGS
@given(data=any_bytes())
def test_lossy_tokenizers_report_a_loss_and_never_raise(name: str, data: bytes) -> None:
    adapter = adapter_of(name)
    assert adapter.loss
    assert not adapter.is_exact
    ids = adapter.encode_continuation(data)
    assert all(0 <= token_id < adapter.vocab_size for token_id in ids)
    encode_start(adapter, data)


@pytest.mark.parametrize("name", NAMES)
@SETTINGS
@given(data=any_bytes())
def test_batches_give_the_ids_of_single_calls(name: str, data: bytes) -> None:
    adapter = adapter_of(name)
    batch = [data, b" the", b"", data[1:], b"\xf0\x9f", "é日".encode(), b"ing", b" ", data]
    assert adapter.encode_continuations(batch) == [adapter.encode_continuation(part) for part in batch]


def own_ids(tokenizer: Any, text: str) -> list[int]:
    """Encode with the tokenizer itself, without adding or parsing special tokens."""
    return list(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))


@pytest.mark.parametrize("name", ["byte_level", "byte_level_digits", "byte_level_whole"])
@SETTINGS
@given(text=texts())
def test_byte_level_gives_the_tokenizers_own_ids(name: str, text: str) -> None:
    assert adapter_of(name).encode_continuation(text.encode()) == own_ids(small_tokenizer(name), text)


@pytest.mark.parametrize("name", ["llama", "llama_prepend", "llama_crossing", "llama_no_bytes"])
@SETTINGS
@given(text=texts())
def test_sentencepiece_gives_the_tokenizers_own_ids_at_the_start(name: str, text: str) -> None:
    if "▁" not in text:  # the tokenizer itself reads it as a space
        assert encode_start(adapter_of(name), text.encode()) == own_ids(small_tokenizer(name), text)


@pytest.mark.parametrize("name", ["unigram_raw", "unigram_raw_words"])
@SETTINGS
@given(text=texts())
def test_raw_pieces_give_the_tokenizers_own_ids(name: str, text: str) -> None:
    adapter = adapter_of(name)
    if not any(mark in text for mark in ("<0x", "<s>", "</s>", "<unk>")):  # the tokenizer reads a name as the token
        assert adapter.encode_continuation(text.encode()) == own_ids(small_tokenizer(name), text)
