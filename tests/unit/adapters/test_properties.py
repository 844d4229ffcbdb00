"""Properties of every adapter, on small tokenizers of every family."""

import tempfile
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given

from tests.support.gguf_files import write_tokenizer
from tests.support.tokenizers import BUILDERS, encode_start, small_tokenizer
from tests.unit.adapters.strategies import SETTINGS, any_bytes, texts
from uag.adapters import TokenizerAdapter, from_tokenizer
from uag.gguf import read_file, read_tokenizer

NAMES = sorted(BUILDERS)
LOSSY = {
    "end_of_word", "llama_drops", "llama_no_bytes", "sentencepiece_library_no_bytes", "slow_python", "unigram_lossy",
    "wordpiece",
}  # fmt: skip

GGUF = {"byte_level_digits": "smollm", "byte_level_llama3": "tekken", "llama": "", "llama_crossing": "", "unigram": ""}
"""Tokenizers that are also read from GGUF files, with the names of their pre-tokenizers in llama.cpp."""


@cache
def adapter_of(name: str) -> TokenizerAdapter:
    """Keep adapters across examples; the package's cache holds them only weakly."""
    return from_tokenizer(small_tokenizer(name))


HAS_GGUF = find_spec("gguf") is not None and find_spec("llama_cpp") is not None
NEEDS_GGUF = pytest.mark.skipif(not HAS_GGUF, reason="llama-cpp-python (extra gguf) or gguf is not installed")


@cache
def gguf_adapter(name: str) -> TokenizerAdapter:
    with tempfile.TemporaryDirectory() as folder:
        path = write_tokenizer(Path(folder) / "t.gguf", small_tokenizer(name), GGUF[name])
        return from_tokenizer(read_tokenizer(read_file(path)))


@pytest.mark.gguf
@NEEDS_GGUF
def test_long_runs_do_not_overflow_the_stack() -> None:
    adapter = gguf_adapter("byte_level_llama3")  # like "tekken", whose pattern llama.cpp matches recursively
    data = b"a long run:" + b" " * 100_000 + b"a" * 100_000
    assert adapter.join(adapter.encode_continuation(data)) == data


@pytest.mark.gguf
@NEEDS_GGUF
def test_an_unfinished_character_keeps_the_token_that_ends_in_it() -> None:
    adapter = gguf_adapter("byte_level_digits")
    whole = adapter.encode_continuation(" 日".encode())
    for num in range(1, len(whole)):
        data = adapter.join(whole[:num])
        assert data is not None
        assert adapter.encode_continuation(data) == whole[:num]


EXACT = [(adapter_of, name) for name in sorted(set(NAMES) - LOSSY)]
EXACT_GGUF = [pytest.param(gguf_adapter, name, marks=[pytest.mark.gguf, NEEDS_GGUF]) for name in GGUF]


@pytest.mark.parametrize(("build", "name"), [*EXACT, *EXACT_GGUF])
@SETTINGS
@example(data=b"")
@example(data=b"  one ")
@example(data="▁ a▁b </s> x<s> <0x41> <unk> <0xFF> \ufffd \n\t\r\n ﬁ e\u0301".encode())  # looks like pieces
@given(data=any_bytes())
def test_joined_bytes_equal_the_text(build: Callable[[str], TokenizerAdapter], name: str, data: bytes) -> None:
    adapter = build(name)
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
