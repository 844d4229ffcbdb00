"""Names and options of GGUF drafts, without llama.cpp."""

import sys
from pathlib import Path
from typing import Any

import pytest

from uag.errors import LoadingError, OptionError, UnsupportedError
from uag.gguf import GgufDraft, llama


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
        GgufDraft("nobody/nothing:draft.gguf").check()


def test_missing_llama_cpp_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.gguf"
    path.write_bytes(b"GGUF")
    llama.library.cache_clear()
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(UnsupportedError, match=r"needs llama-cpp-python.*pip install llama-cpp-python"):
        GgufDraft(path).check()
    monkeypatch.undo()
    llama.library.cache_clear()
