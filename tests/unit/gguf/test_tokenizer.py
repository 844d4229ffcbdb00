"""Tokenizers in GGUF files return the ids of the tokenizers that the files were written from."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tests.support.gguf_files import UNUSED, add_tokenizer, finish, scores_of, write_tokenizer, writer
from tests.support.tokenizers import CORPUS, small_tokenizer
from uag.adapters import from_tokenizer
from uag.drafting.models.open_draft import adapter_for
from uag.errors import TokenizerError, UnsupportedError
from uag.gguf import GgufDraft, read_file, read_tokenizer

pytestmark = pytest.mark.gguf
pytest.importorskip("gguf", reason="GGUF files are written with the gguf package")
pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed (extra gguf)")

TEXTS = [
    *CORPUS[:9],
    "  hi  there\n\n\n  x = 12345678\t\t 'don't' I'LL",
    " a",
    "x" * 40,
    "\r\n\r\n a  b",
    "a<|im_start|>user\nhi<|im_end|>",
    "“quotes” — em… 漢字かな 12 345,67 ½ ",
]

BYTE_LEVEL = {
    "gpt2": "gpt-2",
    "smollm": "smollm",
    "starcoder2": "starcoder",
    "qwen2.5": "qwen2",
    "llama3": "llama-bpe",
    "mistral-tekken": "tekken",
    "deepseek-coder": "deepseek-coder",
    "cl100k_base": "dbrx",
}


def folder_of(shared: Path, name: str) -> Path:
    folder = shared / "tokenizers" / name
    if not folder.is_dir():
        pytest.skip(f"no tokenizer {name} in the shared data")
    return folder


def source_of(shared: Path, name: str) -> Any:
    """The tokenizer as in its file; some transformers classes drop steps of it (StarCoder's digits)."""
    folder = folder_of(shared, name)
    whole = AutoTokenizer.from_pretrained(folder)
    if not (folder / "tokenizer.json").is_file():
        return whole
    roles = {role: token for role, token in whole.special_tokens_map.items() if isinstance(token, str)}
    return PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **roles)


def same_ids(ours: Any, other: Any, texts: list[str] = TEXTS) -> None:
    for text in texts:
        found = ours.encode(text, add_special_tokens=False)
        expected = other.encode(text, add_special_tokens=False, split_special_tokens=True)
        assert found == expected, (text, [ours.pieces.get(i) for i in found], other.convert_ids_to_tokens(expected))


@pytest.mark.slow
@pytest.mark.real_tokenizers
@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_byte_level_bpe_gives_the_ids_of_its_source(name: str, shared: Path, tmp_path: Path) -> None:
    source = source_of(shared, name)
    path = write_tokenizer(tmp_path / "t.gguf", source, BYTE_LEVEL[name])
    made = read_tokenizer(read_file(path))
    texts = [text for text in TEXTS if "e\u0301" not in text] if name == "qwen2.5" else TEXTS  # GGUF files lack NFC
    same_ids(made, source, texts)
    ours, theirs = from_tokenizer(made), from_tokenizer(source)
    assert adapter_for(theirs, ours, GgufDraft(path)) is theirs
    assert ours.controls.control_ids >= theirs.controls.control_ids


@pytest.mark.real_tokenizers
@pytest.mark.parametrize(
    "name", [*(pytest.param(n, marks=pytest.mark.slow) for n in ("llama2", "mistral-v1")), "tok512"]
)
def test_sentencepiece_bpe_gives_the_ids_of_its_source(name: str, shared: Path, tmp_path: Path) -> None:
    folder = folder_of(shared, name)
    source = AutoTokenizer.from_pretrained(folder)
    path = write_tokenizer(tmp_path / "t.gguf", source, scores=scores_of(folder), add_add_bos_token=True)
    made = read_tokenizer(read_file(path))
    same_ids(made, source)
    assert from_tokenizer(made).token_bytes == from_tokenizer(source).token_bytes
    assert made.encode("a")[0] == source.bos_token_id


@pytest.mark.slow
@pytest.mark.real_tokenizers
def test_unigram_gives_the_ids_of_its_source(shared: Path, tmp_path: Path) -> None:
    source = source_of(shared, "t5-small")
    path = write_tokenizer(tmp_path / "t.gguf", source, architecture="t5", add_remove_extra_whitespaces=True)
    made = read_tokenizer(read_file(path))
    same_ids(made, source)
    assert made.encode("a")[-1] == source.eos_token_id


@pytest.mark.parametrize(
    ("name", "pre"),
    [("byte_level", "gpt-2"), ("byte_level_digits", "smollm"), ("byte_level_llama3", "dbrx"), ("llama", "")],
)
def test_small_tokenizers_round_trip(name: str, pre: str, tmp_path: Path) -> None:
    source = small_tokenizer(name)
    made = read_tokenizer(read_file(write_tokenizer(tmp_path / "t.gguf", source, pre)))
    same_ids(made, source, [text for text in TEXTS if "e\u0301" not in text])
    ours, theirs = from_tokenizer(made), from_tokenizer(source)
    assert (ours.family, ours.is_exact) == ("llama_cpp", True)
    assert ours.token_bytes == theirs.token_bytes
    assert ours.controls.eos_id == theirs.controls.eos_id


def test_the_file_determines_the_dummy_prefix(tmp_path: Path) -> None:
    source = small_tokenizer("llama")
    for is_wanted in (True, False):
        path = write_tokenizer(tmp_path / f"{is_wanted}.gguf", source, add_add_space_prefix=is_wanted)
        adapter = from_tokenizer(read_tokenizer(read_file(path)))
        assert adapter.start_prefix == (b" " if is_wanted else b"")
        assert adapter.is_exact


def test_ids_that_pad_the_head_are_not_tokens(tmp_path: Path) -> None:
    source = small_tokenizer("byte_level")
    made = read_tokenizer(read_file(write_tokenizer(tmp_path / "t.gguf", source, "gpt-2", head_size=1024)))
    assert len(made) == len(source) < 1024
    assert UNUSED not in {kind for kind in made.added_tokens_decoder if kind >= len(source)}
    assert from_tokenizer(made).token_bytes == from_tokenizer(source).token_bytes


@pytest.mark.parametrize(
    ("kind", "tokenizer", "message"),
    [
        (None, None, "key not found in model: tokenizer.ggml.model"),
        ("of-the-future", None, "unknown tokenizer"),
        ("gpt2", None, "cannot find tokenizer"),
        ("no_vocab", None, "has no tokenizer. Pass the model's own"),
        (None, "llama_no_bytes", "without tokens for all bytes. Pass the model's own"),
    ],
)
def test_a_file_without_a_usable_tokenizer_is_refused(
    kind: str | None, tokenizer: str | None, message: str, tmp_path: Path
) -> None:
    file = writer(tmp_path / "t.gguf")
    file.add_name("nothing inside")
    if kind is not None:
        file.add_tokenizer_model(kind)
    if tokenizer is not None:
        add_tokenizer(file, small_tokenizer(tokenizer))
    finish(file)
    with pytest.raises((TokenizerError, UnsupportedError), match=message):
        read_tokenizer(read_file(tmp_path / "t.gguf"))
