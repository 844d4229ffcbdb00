"""Tokenizers out of GGUF files: the ids of the tokenizers that the files were written from, and of transformers'."""

from __future__ import annotations

import logging
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tests.support.gguf_files import UNUSED, finish, scores_of, write_tokenizer, writer
from tests.support.tokenizers import CORPUS, small_tokenizer
from uag.adapters import from_tokenizer
from uag.errors import TokenizerError
from uag.gguf import read_file, read_tokenizer
from uag.gguf.pieces import merges_of

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
KNOWN_TO_TRANSFORMERS = ("gpt2", "qwen2.5", "llama3", "mistral-tekken", "cl100k_base")


def folder_of(shared: Path, name: str) -> Path:
    folder = shared / "tokenizers" / name
    if not folder.is_dir():
        pytest.skip(f"no tokenizer {name} in the shared data")
    return folder


def source_of(shared: Path, name: str) -> Any:
    """The tokenizer as its file has it: some classes of transformers drop steps of it (StarCoder's digits)."""
    folder = folder_of(shared, name)
    whole = AutoTokenizer.from_pretrained(folder)
    if not (folder / "tokenizer.json").is_file():
        return whole
    roles = {role: token for role, token in whole.special_tokens_map.items() if isinstance(token, str)}
    return PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **roles)


def same_ids(ours: Any, other: Any, texts: list[str] = TEXTS) -> None:
    for text in texts:
        found, due = (t(text, add_special_tokens=False)["input_ids"] for t in (ours, other))
        assert found == due, (text, ours.convert_ids_to_tokens(found), other.convert_ids_to_tokens(due))


def of_transformers(path: Path) -> Any:
    """The tokenizer that transformers makes of a file; older releases make others."""
    pytest.importorskip("transformers.integrations.gguf", reason="a release that reads fewer kinds")
    return AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)


@pytest.mark.slow
@pytest.mark.real_tokenizers
@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_byte_level_bpe_gives_the_ids_of_its_source(name: str, shared: Path, tmp_path: Path) -> None:
    source = source_of(shared, name)
    path = write_tokenizer(tmp_path / "t.gguf", source, BYTE_LEVEL[name])
    made = read_tokenizer(read_file(path))
    texts = [text for text in TEXTS if "e\u0301" not in text] if name == "qwen2.5" else TEXTS  # no file tells of NFC
    same_ids(made, source, texts)
    ours, theirs = from_tokenizer(made), from_tokenizer(source)
    assert ours.token_bytes == theirs.token_bytes
    assert ours.controls.control_ids == theirs.controls.control_ids
    if name in KNOWN_TO_TRANSFORMERS:
        same_ids(made, of_transformers(path))


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
    assert made("a")["input_ids"][0] == source.bos_token_id
    same_ids(made, of_transformers(path))


@pytest.mark.slow
@pytest.mark.real_tokenizers
def test_phi3_prepends_its_space_twice(shared: Path, tmp_path: Path) -> None:
    folder = folder_of(shared, "phi-3-mini")
    source = AutoTokenizer.from_pretrained(folder)
    scores = scores_of(folder_of(shared, "llama2"))  # the same pieces
    path = write_tokenizer(tmp_path / "t.gguf", source, architecture="phi3", scores=scores)
    made = read_tokenizer(read_file(path))
    same_ids(made, source, TEXTS[:-2])
    same_ids(made, of_transformers(path))


@pytest.mark.slow
@pytest.mark.real_tokenizers
def test_unigram_gives_the_ids_of_its_source(shared: Path, tmp_path: Path) -> None:
    source = source_of(shared, "t5-small")
    path = write_tokenizer(tmp_path / "t.gguf", source, architecture="t5", add_remove_extra_whitespaces=True)
    made = read_tokenizer(read_file(path))
    same_ids(made, source)
    assert from_tokenizer(made).family == "unigram"
    assert made("a")["input_ids"][-1] == source.eos_token_id
    # transformers leaves the file's normalization out.
    same_ids(made, of_transformers(path), [text for text in TEXTS if unicodedata.normalize("NFKC", text) == text])


@pytest.mark.slow
@pytest.mark.real_tokenizers
def test_wordpiece_gives_the_ids_of_its_source(shared: Path, tmp_path: Path) -> None:
    source = source_of(shared, "bert-base-uncased")
    made = read_tokenizer(read_file(write_tokenizer(tmp_path / "t.gguf", source, architecture="bert")))
    same_ids(made, source)
    assert from_tokenizer(made).token_bytes == from_tokenizer(source).token_bytes
    assert made("a")["input_ids"] == source("a")["input_ids"]


@pytest.mark.parametrize(
    ("name", "pre"),
    [
        ("byte_level", "gpt-2"),
        ("byte_level_digits", "smollm"),
        ("byte_level_llama3", "dbrx"),
        ("unigram_unsplit", ""),
        ("wordpiece", ""),
    ],
)
def test_small_tokenizers_come_back(name: str, pre: str, tmp_path: Path) -> None:
    source = small_tokenizer(name)
    made = read_tokenizer(read_file(write_tokenizer(tmp_path / "t.gguf", source, pre)))
    same_ids(made, source, [text for text in TEXTS if "e\u0301" not in text])
    ours, theirs = from_tokenizer(made), from_tokenizer(source)
    assert ours.family == theirs.family
    assert ours.token_bytes == theirs.token_bytes
    assert ours.controls.eos_id == theirs.controls.eos_id


def test_a_space_goes_in_front_only_where_the_file_says_so(tmp_path: Path) -> None:
    source = small_tokenizer("llama")
    for is_wanted in (True, False):
        path = write_tokenizer(tmp_path / f"{is_wanted}.gguf", source, add_add_space_prefix=is_wanted)
        adapter = from_tokenizer(read_tokenizer(read_file(path)))
        assert adapter.start_prefix == (b" " if is_wanted else b"")
        assert adapter.is_exact


def test_ids_that_only_fill_the_head_are_no_tokens(tmp_path: Path) -> None:
    source = small_tokenizer("byte_level")
    made = read_tokenizer(read_file(write_tokenizer(tmp_path / "t.gguf", source, "gpt-2", head_size=1024)))
    assert len(made) == len(source) < 1024
    assert UNUSED not in {kind for kind in made.added_tokens_decoder if kind >= len(source)}
    assert from_tokenizer(made).token_bytes == from_tokenizer(source).token_bytes


def test_a_way_to_cut_that_nobody_knows_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = small_tokenizer("byte_level")
    with caplog.at_level(logging.WARNING, "uag"):
        made = read_tokenizer(read_file(write_tokenizer(tmp_path / "t.gguf", source, "of-the-future")))
    assert "of-the-future" in caplog.text
    same_ids(made, source)


def test_the_chat_template_comes_along(tmp_path: Path) -> None:
    template = "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}"
    path = write_tokenizer(tmp_path / "t.gguf", small_tokenizer("byte_level"), "gpt-2", add_chat_template=template)
    made = read_tokenizer(read_file(path))
    turn = [{"role": "user", "content": "hi"}]
    assert made.apply_chat_template(turn, tokenize=False) == "<|im_start|>hi<|im_end|>"


def test_longer_left_parts_merge_first() -> None:
    tokens = ["a", "b", "ab", "ba", "aba"]
    merges = merges_of(tokens, [0.0, 0.0, -1.0, -2.0, -3.0])
    assert merges == [("a", "b"), ("b", "a"), ("ab", "a"), ("a", "ba")]


@pytest.mark.parametrize(("kind", "message"), [("", "has no tokenizer"), ("rwkv", "of kind 'rwkv'")])
def test_a_file_without_a_known_tokenizer_is_refused(kind: str, message: str, tmp_path: Path) -> None:
    file = writer(tmp_path / "t.gguf")
    file.add_name("nothing inside")
    if kind:
        file.add_tokenizer_model(kind)
    finish(file)
    with pytest.raises(TokenizerError, match=message):
        read_tokenizer(read_file(tmp_path / "t.gguf"))


def test_a_tokenizer_without_tokens_is_refused(tmp_path: Path) -> None:
    file = writer(tmp_path / "t.gguf")
    file.add_tokenizer_model("gpt2")
    finish(file)
    with pytest.raises(TokenizerError, match="has 0 tokens"):
        read_tokenizer(read_file(tmp_path / "t.gguf"))
