"""What GGUF files say, and files that are none."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.gguf_files import finish, write_tokenizer, writer
from tests.support.tokenizers import small_tokenizer
from uag.errors import OptionError, UnsupportedError
from uag.gguf import GgufDraft, as_draft, read_file

pytest.importorskip("gguf", reason="GGUF files are written with the gguf package")


def test_every_kind_of_value_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "t.gguf"
    file = writer(path)
    given: dict[str, Any] = {"a.u8": 200, "a.i32": -5, "a.u64": 1 << 40, "a.f32": 0.5, "a.yes": True, "a.text": "Größe"}
    for (name, value), method in zip(
        given.items(), ("uint8", "int32", "uint64", "float32", "bool", "string"), strict=True
    ):
        getattr(file, f"add_{method}")(name, value)
    file.add_array("a.words", ["one", "", "drei"])
    file.add_array("a.numbers", [1.5, -2.5])
    file.add_tensor("token_embd.weight", np.zeros((4, 32), dtype=np.float32))
    finish(file)
    found = read_file(path)
    assert {name: found.metadata[name] for name in given} == given
    assert found.metadata["a.words"] == ["one", "", "drei"]
    assert found.metadata["a.numbers"].tolist() == [1.5, -2.5]
    assert found.architecture == "llama"
    assert found.tensor_names == {"token_embd.weight"}
    assert read_file(path) is found


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path / "t.gguf", small_tokenizer("byte_level"), "gpt-2")
    before = read_file(path)
    write_tokenizer(path, small_tokenizer("llama"))
    assert read_file(path).metadata["tokenizer.ggml.model"] != before.metadata["tokenizer.ggml.model"]


@pytest.mark.parametrize("share", [0.0001, 0.01, 0.3, 0.9, 0.99])
def test_a_file_that_is_cut_off_is_refused(share: float, tmp_path: Path) -> None:
    whole = write_tokenizer(tmp_path / "whole.gguf", small_tokenizer("byte_level"), "gpt-2").read_bytes()
    path = tmp_path / "t.gguf"
    path.write_bytes(whole[: max(5, int(share * len(whole)))])
    with pytest.raises(UnsupportedError, match=r"cut off or damaged .* Fetch it again"):
        read_file(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.gguf"
    path.write_bytes(b"")
    with pytest.raises(UnsupportedError, match="is no GGUF file"):
        read_file(path)
    path.write_bytes(b"PK\x03\x04 something else")
    with pytest.raises(UnsupportedError, match="does not begin with the bytes b'GGUF'"):
        read_file(path)
    path.write_bytes(b"GGUF" + (99).to_bytes(4, "little") + bytes(64))
    with pytest.raises(UnsupportedError, match="version 99"):
        read_file(path)
    with pytest.raises(FileNotFoundError, match="no GGUF file"):
        read_file(tmp_path / "nowhere.gguf")


def test_one_part_of_several_is_refused(tmp_path: Path) -> None:
    file = writer(tmp_path / "t.gguf")
    file.add_uint16("split.count", 3)
    finish(file)
    with pytest.raises(UnsupportedError, match=r"one of 3 parts .* --merge"):
        read_file(tmp_path / "t.gguf")


@pytest.mark.parametrize(
    ("architecture", "values", "message"),
    [
        ("clip", {}, "an image encoder"),
        ("llama", {"general.type": "adapter"}, "no model of its own but 'adapter'"),
        ("bert", {}, "reads text in both directions"),
        ("llama", {"llama.attention.causal": False}, "reads text in both directions"),
        ("qwen3", {"qwen3.pooling_type": 3}, "an embedding model"),
        ("t5", {}, "an encoder-decoder"),
        ("llama", {"no": "embeddings"}, "has no token embeddings"),
    ],
)
def test_models_that_cannot_draft_are_refused(
    architecture: str, values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    file = writer(tmp_path / "t.gguf", architecture)
    for name, value in values.items():
        {bool: file.add_bool, int: file.add_uint32, str: file.add_string}[type(value)](name, value)
    if "no" not in values:
        file.add_tensor("token_embd.weight", np.zeros((4, 32), dtype=np.float32))
    finish(file)
    with pytest.raises(UnsupportedError, match=message):
        GgufDraft(tmp_path / "t.gguf").check()


@pytest.mark.parametrize(
    "options", [{"threads": 0}, {"context": 8}, {"gpu_layers": -2}, {"gpu_layers": None}, {"threads": True}]
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=f"{next(iter(options))}=.* must be a whole number of"):
        GgufDraft("draft.gguf", **options)


def test_a_draft_is_its_name_and_options(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="names no GGUF file"):
        GgufDraft("draft.bin")
    path = write_tokenizer(tmp_path / "t.gguf", small_tokenizer("byte_level"), "gpt-2")
    draft = as_draft(path)
    assert draft == GgufDraft(path)
    assert draft.vocab_size == len(draft.tokenizer)
    assert repr(GgufDraft("a.gguf", threads=2)) == "GgufDraft('a.gguf', threads=2)"
    for other in (copy.deepcopy(draft), pickle.loads(pickle.dumps(draft))):
        assert other == draft
        assert "file" not in vars(other)
        assert other.tokenizer is draft.tokenizer
    model = object()
    assert as_draft(model) is model


def test_a_file_that_the_hub_does_not_have_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(FileNotFoundError, match=r"no GGUF file 'draft.gguf' in the hub's 'nobody/nothing'"):
        GgufDraft("nobody/nothing:draft.gguf").check()
