"""Pieces with raw spaces and byte fallback: the bundled draft's tokenizer, and small ones like it."""

from typing import Any

import pytest
from tokenizers import decoders, normalizers, pre_tokenizers
from transformers import AutoTokenizer

from tests.support.tokenizers import holds, raw, small_tokenizer
from uag.adapters import from_tokenizer
from uag.bench import heldout_prompts
from uag.loading import demo_folder

HARD_TEXTS = [
    *("", " ", "    ", "\n\n\n\n        \n", "def f(self):\n    if x:\n\t\treturn  {'a': 1}\n", " leading, trailing "),
    *("x(<0x41> <unk>) <s> \u2581 \u00a0 \r\n e\u0301 \u4e2d\u6587 \U0001f642 \x00", "a._b .c__init__ 12 3.14"),
]


@pytest.mark.parametrize(("name", "family"), [("target", "byte_level"), ("draft", "sentencepiece")])
def test_the_bundled_pair_is_exact_and_returns_its_own_ids(name: str, family: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(demo_folder(name))
    adapter = from_tokenizer(tokenizer)
    assert (adapter.family, adapter.is_exact, adapter.start_prefix) == (family, True, b"")
    for text in (*HARD_TEXTS, *(prompt.text for prompt in heldout_prompts())):
        ids = adapter.encode_continuation(text.encode())
        assert adapter.join(ids) == text.encode()
        assert tokenizer.decode(tokenizer(text).input_ids) == text
        if name == "target" or "<0x" not in text:  # the draft's tokenizer itself would encode a name as its token
            assert ids == tokenizer(text, add_special_tokens=False).input_ids
    for data in (b"\xf0\x9f", b"ab\xc3", b"\xa9 ab \xff\n"):
        assert holds(adapter, data)
    assert holds(adapter, f"a{tokenizer.eos_token}b".encode())


def test_other_characters_and_unfinished_ones_are_encoded_in_bytes() -> None:
    adapter = from_tokenizer(small_tokenizer("unigram_raw"))
    vocabulary = adapter.tokenizer.get_vocab()
    assert adapter.encode_continuation(b" the\xc3") == [vocabulary[" the"], vocabulary["<0xC3>"]]
    assert adapter.encode_continuation(b"\xa9 the") == [vocabulary["<0xA9>"], vocabulary[" the"]]
    assert adapter.encode_continuation("▁".encode()) == [vocabulary[f"<0x{byte:02X}>"] for byte in "▁".encode()]


def test_unk_has_no_text_even_without_a_role() -> None:
    tokenizer = small_tokenizer("unigram_raw_words")
    adapter = from_tokenizer(tokenizer)
    unk_id = tokenizer.get_vocab()["<unk>"]
    assert adapter.controls.unk_id is None
    assert adapter.token_bytes[unk_id] is None
    assert unk_id in tokenizer.encode(" <unk>", add_special_tokens=False)
    assert holds(adapter, b"a <unk>b")


def changed(**parts: Any) -> Any:
    tokenizer = raw()
    for name, part in parts.items():
        setattr(tokenizer.backend_tokenizer, name, part)
    return tokenizer


@pytest.mark.parametrize(
    "parts",
    [
        {"pre_tokenizer": pre_tokenizers.Whitespace()},  # drops spaces
        {"pre_tokenizer": pre_tokenizers.Split(" ", "removed")},
        {"decoder": decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])},
        {"decoder": decoders.Fuse()},
        {"normalizer": normalizers.Replace("a", "b")},
    ],
    ids=repr,
)
def test_pieces_are_not_raw_if_something_changes_the_text(parts: dict[str, Any]) -> None:
    assert from_tokenizer(changed(**parts)).family == "generic"
