"""Byte-level BPE: bytes of unusual tokens, incomplete characters, normalizers, pre-tokenizer state."""

from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from tests.support.tokenizers import (
    byte_level,
    byte_level_digits,
    byte_level_llama3,
    encode_start,
    holds,
    small_tokenizer,
    wrap,
)
from uag.adapters import from_tokenizer
from uag.adapters.byte_level import byte_alphabet


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
    assert len({from_tokenizer(t).fingerprint for t in (first, *others)}) == 6
