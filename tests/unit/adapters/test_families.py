"""Adapters of each family: the bytes of unusual tokens, incomplete characters, prefixes, normalizers."""

from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer
from transformers.utils import is_mistral_common_available

from tests.support.tokenizers import (
    byte_level,
    byte_level_digits,
    byte_level_llama3,
    encode_start,
    holds,
    llama,
    mistral_common,
    raw,
    slow_python,
    small_tokenizer,
    wrap,
)
from uag.adapters import Place, from_tokenizer
from uag.adapters.byte_level import byte_alphabet
from uag.bench import heldout_prompts
from uag.loading import demo_folder


def test_every_id_has_its_bytes() -> None:
    adapter = from_tokenizer(small_tokenizer("byte_level"))
    vocabulary = adapter.tokenizer.get_vocab()
    assert adapter.token_bytes[vocabulary["Ġthe"]] == b" the"
    assert adapter.token_bytes[vocabulary["ø"]] == b"\xf8"
    assert adapter.token_bytes[adapter.controls.eos_id or 0] is None
    assert adapter.vocab_size == len(adapter.token_bytes) == max(vocabulary.values()) + 1


def test_added_tokens_carry_raw_text_not_the_byte_alphabet() -> None:
    # DeepSeek holds "ø" this way; its decode gives U+FFFD. "Ġ" is a letter of Maltese before it is a space.
    tokenizer = byte_level(added=(AddedToken("øø", special=False), AddedToken("Ġo", special=False)))
    adapter = from_tokenizer(tokenizer)
    vocabulary = tokenizer.get_vocab()
    assert "\ufffd" in tokenizer.decode([vocabulary["øø"]])
    assert adapter.token_bytes[vocabulary["øø"]] == "øø".encode()
    text = "søøn Ġorg".encode()
    assert vocabulary["øø"] in adapter.encode_continuation(text)
    assert adapter.join(adapter.encode_continuation(text)) == text
    assert adapter.encode_continuation(text) == tokenizer.encode(text.decode(), add_special_tokens=False)


def test_added_tokens_that_strip_lose_no_bytes() -> None:
    tokenizer = byte_level(added=(AddedToken("<tag>", lstrip=True, rstrip=True, special=False),))
    adapter = from_tokenizer(tokenizer)
    assert holds(adapter, b"a  <tag>  b")
    assert tokenizer.get_vocab()["<tag>"] in adapter.encode_continuation(b"a  <tag>  b")


def test_a_normalizer_that_rewrites_text_is_a_loss() -> None:
    adapter = from_tokenizer(byte_level(normalizer=normalizers.Replace("``", '"')))
    assert adapter.loss == "normalizes text (Replace)"
    assert not holds(adapter, b"``x")


def test_an_unfinished_character_keeps_the_token_that_it_ends_in() -> None:
    # many vocabularies have one token for a space and the first bytes of an emoji
    alphabet = sorted(byte_alphabet())
    names = {name: token_id for token_id, name in enumerate([*alphabet, "ðŁ", "ĠðŁ", "<|endoftext|>"])}
    backend = Tokenizer(models.BPE(names, [("ð", "Ł"), ("Ġ", "ðŁ")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    adapter = from_tokenizer(wrap(backend, eos_token="<|endoftext|>"))
    beginning = " 😀".encode()[:3]
    assert adapter.encode_continuation(beginning) == [names["ĠðŁ"]]
    assert adapter.encode_continuation(b"so" + beginning) == [names["s"], names["o"], names["ĠðŁ"]]
    assert adapter.encode_continuation(" 😀".encode())[0] == names["ĠðŁ"]


def test_a_prefix_space_is_added_at_the_start_only() -> None:
    adapter = from_tokenizer(byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True)))
    assert adapter.start_prefix == b" "
    assert adapter.join(adapter.encode_continuation(b"the")) == b"the"
    assert adapter.join(encode_start(adapter, b"the")) == b" the"
    assert encode_start(adapter, b"the") == adapter.tokenizer.encode("the", add_special_tokens=False)
    assert encode_start(adapter, b" the") == encode_start(adapter, b"the")


def test_fingerprints_depend_on_what_determines_ids_only() -> None:
    first, second, split = byte_level(), byte_level(), byte_level()
    second.padding_side = "left"
    second.model_max_length = 17
    second.chat_template = "{{ messages }}"
    second.pad_token = second.eos_token
    assert from_tokenizer(first).fingerprint == from_tokenizer(second).fingerprint
    split.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    assert split.get_vocab() == first.get_vocab()
    others = [split, byte_level(vocab_size=599), byte_level_digits(), byte_level_llama3(), byte_level(added=("    ",))]
    others += [llama(scheme) for scheme in ("first", "always", None)]
    assert len({from_tokenizer(t).fingerprint for t in (first, *others, llama("first"))}) == 9


WITH_BYTES = ["llama", "llama_prepend", "unigram", "sentencepiece_library", "sentencepiece_library_unigram"]


@pytest.mark.parametrize("name", [*WITH_BYTES, "unigram_raw"])
def test_encoding_returns_the_plain_piece_not_its_byte_twin(name: str) -> None:
    adapter = from_tokenizer(small_tokenizer(name))
    vocabulary: dict[str, int] = adapter.tokenizer.get_vocab()
    plain, twin = vocabulary["a"], vocabulary["<0x61>"]
    assert adapter.token_bytes[plain] == adapter.token_bytes[twin] == b"a"
    assert adapter.encode_continuation(b"a") == [plain]


@pytest.mark.parametrize("name", WITH_BYTES)
def test_a_space_is_added_at_the_start_of_a_text_only(name: str) -> None:
    adapter = from_tokenizer(small_tokenizer(name))
    assert adapter.start_prefix == b" "
    assert adapter.join(encode_start(adapter, b"one")) == b" one"
    assert encode_start(adapter, b"") == []


@pytest.mark.parametrize(
    ("scheme", "after_control", "doubled"), [("first", b"", False), ("always", b" ", False), (None, b" ", True)]
)
def test_prefixes_are_the_tokenizers_own(scheme: str | None, after_control: bytes, doubled: bool) -> None:
    tokenizer = llama(scheme)
    adapter = from_tokenizer(tokenizer)
    assert adapter.control_prefix == after_control
    own = tokenizer.encode("</s>the dog", add_special_tokens=False)
    assert own[1:] == encode_start(adapter, b"the dog", Place.AFTER_CONTROL)
    assert encode_start(adapter, b" the") == tokenizer.encode(" the", add_special_tokens=False)
    assert adapter.join(encode_start(adapter, b" the")) == (b"  the" if doubled else b" the")


@pytest.mark.parametrize("name", ["llama_no_bytes", "unigram_lossy", "sentencepiece_library_no_bytes"])
def test_unknown_characters_are_lost_without_byte_fallback(name: str) -> None:
    adapter = from_tokenizer(small_tokenizer(name))
    assert adapter.loss
    assert holds(adapter, b" the")
    assert not holds(adapter, "the ☃".encode())
    assert not holds(adapter, b"\xf0\x9f")
    assert adapter.encode_continuation("☃".encode()) == [adapter.controls.unk_id]


@pytest.mark.parametrize("name", ["sentencepiece_library", "sentencepiece_library_unigram"])
def test_the_library_returns_the_tokenizers_own_ids(name: str) -> None:
    tokenizer: Any = small_tokenizer(name)
    adapter = from_tokenizer(tokenizer)
    for text in ("the quick brown fox", "Once upon a time, there was 12345.", "лиса прыгает", "日本語 😀"):
        assert encode_start(adapter, text.encode()) == tokenizer.encode(text, add_special_tokens=False)


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


def raw_with(**parts: Any) -> Any:
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
    assert from_tokenizer(raw_with(**parts)).family == "generic"


TEXTS = ("Hello world, 12345!", "日本語 😀 русский", "  a\n\n b")


def test_wordpiece_is_lossy_and_continues_words() -> None:
    adapter = from_tokenizer(small_tokenizer("wordpiece"))
    vocabulary = adapter.tokenizer.get_vocab()
    assert adapter.encode_continuation(b"e") == [vocabulary["##e"]]
    assert adapter.encode_continuation(b" e") == [vocabulary["e"]]
    assert adapter.loss
    assert holds(adapter, b" the dog, and the fox")
    assert not holds(adapter, b" The dog")
    assert encode_start(adapter, b"the dog") == adapter.tokenizer.encode("the dog", add_special_tokens=False)


def test_an_unknown_tokenizer_is_used_through_its_public_methods() -> None:
    tokenizer = small_tokenizer("slow_python")
    adapter = from_tokenizer(tokenizer)
    assert adapter.encode_continuation(b"the fox") == tokenizer.encode("the fox", add_special_tokens=False)
    assert holds(adapter, "the лиса".encode())
    assert holds(adapter, b"don't </s>") == all(c in tokenizer.get_vocab() for c in "don't </s>")
    assert not holds(adapter, b"\xf0\x9f")


def test_a_replacement_character_does_not_stand_for_bytes() -> None:
    tokenizer: Any = slow_python()
    tokenizer._names[5] = "broken"
    decode = tokenizer.decode
    tokenizer.decode = lambda ids, **options: decode(ids, **options).replace("broken", "\ufffd")
    adapter = from_tokenizer(tokenizer)
    assert adapter.token_bytes[5] is None
    assert not any("\ufffd".encode() in (data or b"") for data in adapter.token_bytes)


def test_a_piece_that_ends_a_word_has_a_space() -> None:
    adapter = from_tokenizer(small_tokenizer("end_of_word"))
    vocabulary = adapter.tokenizer.get_vocab()
    assert adapter.token_bytes[vocabulary["the</w>"]] == b"the "
    assert adapter.token_bytes[vocabulary["e"]] == b"e"


def skip_without_mistral_common() -> None:
    if not is_mistral_common_available():
        pytest.skip("mistral-common is not installed, or not in a version that transformers takes")


@pytest.fixture(scope="module")
def tekken() -> Any:
    skip_without_mistral_common()
    return mistral_common()


def test_tekken_returns_its_own_ids(tekken: Any) -> None:
    adapter = from_tokenizer(tekken)
    assert adapter.family == "mistral_common"
    for text in TEXTS:
        assert adapter.encode_continuation(text.encode()) == tekken.encode(text, add_special_tokens=False)
    assert holds(adapter, b"[INST] <s> \xf0\x9f")
    assert (adapter.controls.bos_id, adapter.controls.eos_id) == (1, 2)
    assert adapter.token_bytes[:1000] == (None,) * 1000
    unfinished = adapter.encode_continuation(" 😀".encode()[:-1])  # keeps the token that it ends in
    assert len(unfinished) < len(adapter.encode_continuation(b" ")) + 3


@pytest.mark.parametrize("name", ["tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3"])
def test_the_sentencepiece_models_of_the_backend_are_supported(name: str) -> None:
    skip_without_mistral_common()
    tokenizer = mistral_common(name)
    adapter = from_tokenizer(tokenizer)
    assert adapter.family == "generic"
    assert adapter.is_exact
    for text in TEXTS:
        assert encode_start(adapter, text.encode()) == tokenizer.encode(text, add_special_tokens=False)
        assert holds(adapter, text.encode())
