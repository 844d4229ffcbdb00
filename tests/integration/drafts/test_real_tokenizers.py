"""The adapters with the real tokenizers of the shared folder."""

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.support.tokenizers import encode_start, holds
from tests.unit.adapters.strategies import FRAGMENTS
from tests.unit.adapters.test_window import WORDS, check_text_after_ids
from uag.adapters import TokenizerAdapter, from_tokenizer

pytestmark = pytest.mark.real_tokenizers

BYTE_LEVEL = ("cl100k_base", "deepseek-coder", "gpt-neox", "gpt2", "llama3", "mistral-tekken", "qwen2.5", "smollm")
FAMILIES = dict.fromkeys((*BYTE_LEVEL, "starcoder2", "whisper-large-v3"), "byte_level")
FAMILIES |= dict.fromkeys(("llama2", "mistral-v1", "phi-3-mini", "t5-small", "tok105", "tok512"), "sentencepiece")
FAMILIES |= {"bert-base-uncased": "generic", "byt5": "byte"}
# smollm and starcoder2 lack tokens for a few bytes that hardly any text holds
HOLDS_ORDINARY_TEXT = sorted(set(FAMILIES) - {"bert-base-uncased", "t5-small", "tok105"})
SLOW = {
    *("cl100k_base", "deepseek-coder", "gpt-neox", "mistral-tekken", "mistral-v1", "phi-3-mini"),
    *("starcoder2", "tok512", "whisper-large-v3"),
}
TEXTS = [
    "Hello world, it's 12345 o'clock.\n\n  def f(x):\n\treturn x + 1\r\n",
    "naïve café — smørrebrød 日本語のテキスト。中文，标点 😀👍🏽 русский текст عربي שלום",
    "a  b   c     d \n \n x  ",
    " leading",
    "e\u0301 ﬁ Å \u212b \u0301\u200d\u00a0",
    "</s> <|im_end|> <|endoftext|> [INST] <0x41> ▁ Ġ \ufffd",
]


@cache
def load(folder: Path) -> tuple[Any, TokenizerAdapter]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return tokenizer, from_tokenizer(tokenizer)


def drawn_texts(seed: int, count: int) -> list[str]:
    draw = random.Random(seed)
    return ["".join(draw.choices(FRAGMENTS, k=draw.randint(1, 20))) for _ in range(count)]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in FAMILIES]
)
def test_a_real_tokenizer(name: str, shared: Path) -> None:
    """All in one test: loading one takes seconds."""
    folder = shared / "tokenizers" / name
    if not folder.is_dir():
        pytest.skip(f"no {name} among the shared tokenizers")
    tokenizer, adapter = load(folder)
    if name == "deepseek-coder" and type(tokenizer).__name__ == "LlamaTokenizer":
        pytest.skip("this transformers loads DeepSeek's byte-level BPE as a SentencePiece model: another tokenizer")
    check_family_and_controls(name, tokenizer, adapter)
    check_text_after_drawn_ids(adapter)
    if name in HOLDS_ORDINARY_TEXT:
        check_joined_bytes(adapter)
    if name in ("t5-small", "bert-base-uncased"):
        check_lossy(tokenizer, adapter)
    elif FAMILIES[name] == "byte_level" and name not in ("qwen2.5", "gpt-neox"):
        check_byte_level(tokenizer, adapter)
    elif FAMILIES[name] == "sentencepiece":
        check_sentencepiece(tokenizer, adapter)


def check_family_and_controls(name: str, tokenizer: Any, adapter: TokenizerAdapter) -> None:
    assert adapter.family == FAMILIES[name]
    assert adapter.controls.eos_id == tokenizer.eos_token_id
    assert set(tokenizer.all_special_ids) <= adapter.controls.control_ids
    assert adapter.vocab_size == max(tokenizer.get_vocab().values()) + 1
    assert all(adapter.token_bytes[i] is None for i in adapter.controls.control_ids)


def check_joined_bytes(adapter: TokenizerAdapter) -> None:
    for text in TEXTS:
        data = text.encode()
        for begin, end in ((0, len(data)), (1, len(data) - 1), (25, len(data) - 2), (22, 41)):
            assert adapter.join(adapter.encode_continuation(data[begin:end])) == data[begin:end]


def check_byte_level(tokenizer: Any, adapter: TokenizerAdapter) -> None:
    names = set(adapter.controls.content.values())
    for text in [*TEXTS, *drawn_texts(1, 60)]:
        if adapter.is_exact and not any(name in text for name in names):
            assert adapter.encode_continuation(text.encode()) == tokenizer(text, add_special_tokens=False).input_ids


def check_sentencepiece(tokenizer: Any, adapter: TokenizerAdapter) -> None:
    names = {"▁", *adapter.controls.content.values()}
    for text in [*TEXTS, *drawn_texts(3, 60)]:
        if any(name in text for name in names):
            continue
        assert encode_start(adapter, text.encode()) == tokenizer(text, add_special_tokens=False).input_ids
        # the rest after the first word is a continuation
        tail = f" then {text}"
        assert [*encode_start(adapter, b"Once"), *adapter.encode_continuation(tail.encode())] == tokenizer(
            "Once" + tail, add_special_tokens=False
        ).input_ids


def check_lossy(tokenizer: Any, adapter: TokenizerAdapter) -> None:
    """The ids of plain text are the tokenizer's own."""
    for text in ("the quick brown fox jumps over the lazy dog", "it was a dark night, and the rain fell."):
        assert encode_start(adapter, text.encode()) == tokenizer(text, add_special_tokens=False).input_ids
        assert holds(adapter, b" " + text.encode())
    assert adapter.loss


def check_text_after_drawn_ids(adapter: TokenizerAdapter) -> None:
    draw = random.Random(4)
    for _ in range(12):
        check_text_after_ids(adapter, "".join(draw.choices(WORDS, k=draw.randint(0, 99))).encode(), draw.random())
