"""The properties of every adapter, over tokenizers that were read from GGUF files of each kind."""

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

pytest.importorskip("gguf", reason="GGUF files are written with the gguf package")

KINDS = {"byte_level_digits": "smollm", "llama": "", "llama_crossing": "", "unigram": "", "wordpiece": ""}


@cache
def adapter_of(name: str) -> TokenizerAdapter:
    with tempfile.TemporaryDirectory() as folder:
        path = write_tokenizer(Path(folder) / "t.gguf", small_tokenizer(name), KINDS[name])
        return from_tokenizer(read_tokenizer(read_file(path)))


@pytest.mark.parametrize("name", [name for name in KINDS if name != "wordpiece"])
@SETTINGS
@given(data=any_bytes())
def test_joined_bytes_are_the_bytes_put_in(name: str, data: bytes) -> None:
    adapter = adapter_of(name)
    assert adapter.is_exact
    assert adapter.join(adapter.encode_continuation(data)) == data
