"""Metadata of GGUF files, and files that are refused."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.support.gguf_files import add_tokenizer, finish, write_tokenizer, writer
from tests.support.tokenizers import small_tokenizer
from uag.errors import LoadingError, UnsupportedError
from uag.gguf import GgufDraft, read_file

pytestmark = pytest.mark.gguf
pytest.importorskip("gguf", reason="GGUF files are written with the gguf package")
pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed (extra gguf)")


def test_metadata_is_text_and_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "t.gguf"
    file = writer(path, "qwen2")
    add_tokenizer(file, small_tokenizer("byte_level"), "gpt-2")
    file.add_uint32("a.number", 200)
    file.add_bool("a.yes", True)
    file.add_string("a.text", "Größe")
    finish(file)
    found = read_file(path)
    assert [found.value(f"a.{name}") for name in ("number", "yes", "text", "more")] == ["200", "true", "Größe", None]
    assert (found.value("general.architecture"), found.vocab_size) == ("qwen2", 600)
    assert read_file(path) is found
    write_tokenizer(path, small_tokenizer("llama"))
    assert read_file(path).value("general.architecture") == "llama"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "llama.cpp cannot read (?s:.*)download it again"),
        (b"PK\x03\x04 something else", "invalid magic"),
        (b"GGUF" + (99).to_bytes(4, "little") + bytes(64), "version"),
    ],
)
def test_other_files_are_refused(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "t.gguf"
    path.write_bytes(data)
    with pytest.raises(UnsupportedError, match=message):
        read_file(path)
    with pytest.raises(LoadingError, match="no GGUF file"):
        read_file(tmp_path / "nowhere.gguf")


@pytest.mark.parametrize(
    ("architecture", "values", "message"),
    [
        ("clip", {}, "CLIP"),
        ("bert", {}, "is bidirectional"),
        ("llama", {"llama.attention.causal": False}, "is bidirectional"),
        ("qwen3", {"qwen3.pooling_type": 3}, "an embedding model"),
        ("t5", {}, "an encoder-decoder"),
    ],
)
def test_models_that_cannot_draft_are_refused(
    architecture: str, values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    file = writer(tmp_path / "t.gguf", architecture)
    for name, value in values.items():
        {bool: file.add_bool, int: file.add_uint32}[type(value)](name, value)
    add_tokenizer(file, small_tokenizer("byte_level"), "gpt-2")
    finish(file)
    with pytest.raises(UnsupportedError, match=message):
        GgufDraft(tmp_path / "t.gguf").check()


def test_copies_share_the_file_and_the_tokenizer(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path / "t.gguf", small_tokenizer("byte_level"), "gpt-2")
    draft = GgufDraft(path)
    assert draft.vocab_size == len(draft.tokenizer) == 600
    for other in (copy.deepcopy(draft), pickle.loads(pickle.dumps(draft))):
        assert other == draft
        assert "file" not in vars(other)
        assert other.tokenizer is draft.tokenizer
    assert pickle.loads(pickle.dumps(draft.tokenizer)) is copy.deepcopy(draft.tokenizer) is draft.tokenizer
