"""Tokenizers in GGUF files return the ids of the tokenizers that the files were written from."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.support.gguf_files import finish, scores_of, write_tokenizer, writer
from tests.support.tokenizers import CORPUS, small_tokenizer
from uag.adapters import from_tokenizer
from uag.drafting.models.open_draft import adapter_for
from uag.errors import TokenizerError
from uag.gguf import GgufDraft

pytest.importorskip("gguf", reason="GGUF files are written with the gguf package")

TEXTS = [
    *CORPUS[:9],
    "  hi  there\n\n\n  x = 12345678\t\t 'don't' I'LL",
    " a",
    "x" * 40,
    "\r\n\r\n a  b",
    "a<|im_start|>user\nhi<|im_end|>",
    "“quotes” — em… 漢字かな 12 345,67 ½ ",
]


def check(path: Path, source: Any) -> None:
    """Compare a file's tokenizer with the one that was written. GGUF files lack NFC."""
    draft = GgufDraft(path)
    made = draft.tokenizer
    for text in TEXTS:
        if "e\u0301" not in text:
            due, found = (each.encode(text, add_special_tokens=False) for each in (source, made))
            assert found == due, (text, made.convert_ids_to_tokens(found), source.convert_ids_to_tokens(due))
    ours, theirs = from_tokenizer(made), from_tokenizer(source)
    assert adapter_for(theirs, ours, draft) is theirs
    assert (ours.is_exact, ours.start_prefix, ours.prefix_ids) == (True, theirs.start_prefix, theirs.prefix_ids)
    assert ours.controls.control_ids >= theirs.controls.control_ids


@pytest.mark.parametrize(("name", "pre"), [("byte_level", "gpt-2"), ("byte_level_llama3", "lfm2"), ("llama", "")])
@pytest.mark.parametrize("num_padded", [0, 40])
def test_small_tokenizers_round_trip(name: str, pre: str, num_padded: int, tmp_path: Path) -> None:
    """The ids that pad the head are not the target's, and the architecture does not matter."""
    source, path = small_tokenizer(name), tmp_path / "t.gguf"
    write_tokenizer(path, source, pre, "lfm2", head_size=len(source) + num_padded, add_add_bos_token=False)
    check(path, source)


@pytest.mark.real_tokenizers
@pytest.mark.parametrize(
    ("name", "pre"),
    [
        ("tok512", ""),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("gpt2", "gpt-2"), ("qwen2.5", "qwen2"), ("llama3", "llama-bpe"), ("llama2", ""))
        ),
    ],
)
def test_real_tokenizers_round_trip(name: str, pre: str, shared: Path, tmp_path: Path) -> None:
    folder = shared / "tokenizers" / name
    if not folder.is_dir():
        pytest.skip(f"no tokenizer {name} in the shared data")
    source = AutoTokenizer.from_pretrained(folder)
    scores = None if pre else scores_of(folder)
    has_bos = source.encode("a")[0] == source.bos_token_id
    check(write_tokenizer(tmp_path / "t.gguf", source, pre, scores=scores, add_add_bos_token=has_bos), source)


@pytest.mark.parametrize("kind", [None, "of-the-future", "gpt2", "no_vocab"])
def test_a_file_without_a_usable_tokenizer_is_refused(kind: str | None, tmp_path: Path) -> None:
    file = writer(tmp_path / "t.gguf")
    if kind is not None:
        file.add_tokenizer_model(kind)
    finish(file)
    with pytest.raises(TokenizerError, match="Pass the model's own"):
        GgufDraft(tmp_path / "t.gguf").tokenizer  # noqa: B018
