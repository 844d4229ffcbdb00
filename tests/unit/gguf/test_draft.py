"""Names and options of GGUF drafts, and files that are refused, without llama.cpp."""

import copy
import pickle
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.gguf_files import add_tokenizer, finish, writer
from tests.support.tokenizers import small_tokenizer
from uag import loading
from uag.drafting import check_draft
from uag.drafting.models import llama_cpp
from uag.errors import LoadingError, OptionError, TokenizerError, UnsupportedError
from uag.gguf import GgufDraft


@pytest.mark.parametrize(
    "options", [{"threads": 0}, {"context": 8}, {"gpu_layers": -2}, {"gpu_layers": None}, {"threads": True}]
)
def test_invalid_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=f"{next(iter(options))}=.* must be a whole number of"):
        GgufDraft("draft.gguf", **options)


def test_drafts_compare_by_name_and_options() -> None:
    with pytest.raises(OptionError, match="is not the name of a GGUF file"):
        GgufDraft("draft.bin")
    assert GgufDraft("a.gguf") != GgufDraft("a.gguf", threads=2)


def test_a_file_that_is_not_on_the_hub_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(LoadingError, match=r"no GGUF file 'draft.gguf' in the hub's 'nobody/nothing'"):
        check_draft(GgufDraft("nobody/nothing:draft.gguf"))


ALIGNED_TO_0 = struct.pack("<4sIQQQ17sII", b"GGUF", 3, 0, 1, 17, b"general.alignment", 4, 0)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is damaged. Download it again"),
        (ALIGNED_TO_0, "is damaged. Download it again"),
        (b"PK\x03\x04 something else!!!!!!!!!", "is no GGUF file"),
        (b"GGUF" + (99).to_bytes(4, "little") + bytes(64), "of version 2 or 3"),
    ],
)
def test_other_files_are_refused(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "t.gguf"
    path.write_bytes(data)
    with pytest.raises(UnsupportedError, match=message):
        check_draft(GgufDraft(path))
    with pytest.raises(UnsupportedError, match=message):
        assert GgufDraft(path).tokenizer
    with pytest.raises(LoadingError, match="no GGUF file"):
        check_draft(GgufDraft(tmp_path / "nowhere.gguf"))


def write(path: Path, architecture: str, **values: Any) -> GgufDraft:
    pytest.importorskip("gguf", reason="GGUF files are written with the gguf package")
    file = writer(path, architecture)
    for name, value in values.items():
        {bool: file.add_bool, int: file.add_uint32}[type(value)](f"{architecture}.{name}", value)
    add_tokenizer(file, small_tokenizer("byte_level"), "gpt-2")
    if architecture != "clip":
        file.add_tensor("token_embd.weight", np.zeros((600, 32), dtype=np.float32))
    finish(file)
    return GgufDraft(path)


@pytest.mark.parametrize(
    ("architecture", "values", "message"),
    [
        ("clip", {}, "no embeddings of tokens"),
        ("bert", {}, "is bidirectional"),
        ("llama", {"attention.causal": False}, "is bidirectional"),
        ("qwen3", {"pooling_type": 3}, "an embedding model"),
        ("t5", {}, "an encoder-decoder"),
    ],
)
def test_models_that_cannot_draft_are_refused(
    architecture: str, values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        check_draft(write(tmp_path / "t.gguf", architecture, **values))


def test_missing_llama_cpp_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = write(tmp_path / "t.gguf", "lfm2")
    llama_cpp._library.cache_clear()
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(UnsupportedError, match=r"needs llama-cpp-python.*pip install llama-cpp-python"):
        check_draft(draft)
    monkeypatch.undo()
    llama_cpp._library.cache_clear()


def test_copies_share_the_file_and_the_tokenizer(tmp_path: Path) -> None:
    draft = write(tmp_path / "t.gguf", "lfm2")
    assert draft.vocab_size == len(draft.tokenizer) == 600
    for other in (copy.deepcopy(draft), pickle.loads(pickle.dumps(draft))):
        assert other == draft
        assert other.contents is draft.contents
        assert other.tokenizer is draft.tokenizer


def test_a_tokenizer_that_transformers_does_not_convert_is_asked_for(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="GGUF files are written with the gguf package")
    file = writer(tmp_path / "t.gguf", "lfm2")
    file.add_tokenizer_model("unheard-of")
    finish(file)
    with pytest.raises(TokenizerError, match=r"cannot read the tokenizer in the GGUF file .* Pass the model's own"):
        _ = GgufDraft(tmp_path / "t.gguf").tokenizer


@pytest.mark.parametrize("error", [ImportError, OSError, RuntimeError])
def test_a_llama_cpp_whose_libraries_are_missing_is_not_asked_for(
    error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "llama_cpp.py").write_text(f"raise {error.__name__}('libcudart.so.12 is missing')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "llama_cpp", raising=False)
    monkeypatch.setattr(loading, "_device", lambda _: torch.device("cuda"))
    assert loading.load_draft("draft.gguf") == GgufDraft("draft.gguf", gpu_layers=0)
