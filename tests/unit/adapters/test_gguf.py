"""The properties of every adapter, for tokenizers read from GGUF files of each kind."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given

from tests.support.gguf_files import write_tokenizer
from tests.support.tokenizers import small_tokenizer
from tests.unit.adapters.strategies import SETTINGS, any_bytes
from uag.adapters import TokenizerAdapter, from_tokenizer
from uag.gguf import read_file, read_tokenizer

pytestmark = pytest.mark.gguf
pytest.importorskip("gguf", reason="GGUF files are written with the gguf package")
pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed (extra gguf)")

KINDS = {"byte_level_digits": "smollm", "byte_level_llama3": "tekken", "llama": "", "llama_crossing": "", "unigram": ""}


@cache
def adapter_of(name: str) -> TokenizerAdapter:
    with tempfile.TemporaryDirectory() as folder:
        path = write_tokenizer(Path(folder) / "t.gguf", small_tokenizer(name), KINDS[name])
        return from_tokenizer(read_tokenizer(read_file(path)))


@pytest.mark.parametrize("name", KINDS)
@SETTINGS
@given(data=any_bytes())
def test_joined_bytes_equal_the_text(name: str, data: bytes) -> None:
    adapter = adapter_of(name)
    assert adapter.is_exact
    assert adapter.join(adapter.encode_continuation(data)) == data


def test_long_runs_do_not_overflow_the_stack() -> None:
    adapter = adapter_of("byte_level_llama3")  # like "tekken", whose pattern llama.cpp matches recursively
    data = b"a long run:" + b" " * 100_000 + b"a" * 100_000
    assert adapter.join(adapter.encode_continuation(data)) == data


def test_an_unfinished_character_keeps_the_token_that_ends_in_it() -> None:
    adapter = adapter_of("byte_level_digits")
    whole = adapter.encode_continuation(" 日".encode())
    for num in range(1, len(whole)):
        data = adapter.join(whole[:num])
        assert data is not None
        assert adapter.encode_continuation(data) == whole[:num]
