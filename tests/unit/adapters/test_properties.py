"""Properties of every adapter, on small tokenizers of every family."""

from functools import cache
from typing import Any

import pytest
from hypothesis import example, given

from tests.support.tokenizers import BUILDERS, encode_start, small_tokenizer
from tests.unit.adapters.strategies import SETTINGS, any_bytes, texts
from uag.adapters import TokenizerAdapter, from_tokenizer

NAMES = sorted(BUILDERS)
LOSSY = {
    "end_of_word", "llama_drops", "llama_no_bytes", "sentencepiece_library_no_bytes", "slow_python", "unigram_lossy",
    "wordpiece",
}  # fmt: skip


@cache
def adapter_of(name: str) -> TokenizerAdapter:
    """Keep adapters across examples; the package's cache holds them only weakly."""
    return from_tokenizer(small_tokenizer(name))


@pytest.mark.parametrize("name", sorted(set(NAMES) - LOSSY))
@SETTINGS
@example(data=b"")
@example(data=b"  one ")
@example(data="▁ a▁b </s> x<s> <0x41> <unk> <0xFF> \ufffd \n\t\r\n ﬁ e\u0301".encode())  # looks like pieces
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


def own_ids(tokenizer: Any, text: str) -> list[int]:
    """Encode with the tokenizer itself, without adding or parsing special tokens."""
    return list(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))


READS = {"byte_level": (), "llama": ("▁",), "unigram_raw": ("<0x", "<s>", "</s>", "<unk>")}
"""What the tokenizers themselves do not read as text, by the beginning of their names."""


@pytest.mark.parametrize(
    "name",
    [
        *("llama", "llama_prepend", "llama_crossing", "llama_no_bytes", "unigram_raw", "unigram_raw_words"),
        *("byte_level", "byte_level_digits", "byte_level_whole"),
    ],
)
@SETTINGS
@example(text="a<|im_end|>b<|endoftext|>")
@given(text=texts())
def test_ids_at_the_start_are_the_tokenizers_own(name: str, text: str) -> None:
    marks = next(marks for family, marks in READS.items() if name.startswith(family))
    if not any(mark in text for mark in marks):
        assert encode_start(adapter_of(name), text.encode()) == own_ids(small_tokenizer(name), text)
