"""Properties of every adapter, on small tokenizers of every family."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from tests.support.tokenizers import BUILDERS, LLAMA3_PATTERN, RAW_PATTERN, small_tokenizer
from tests.unit.adapters.strategies import SETTINGS, any_bytes, edits, texts
from uag.adapters import AlignmentWindow, TokenizerAdapter, from_tokenizer, utf8
from uag.adapters.base import Place
from uag.adapters.pretokens import BOUNDARIES, GPT2_PATTERN, find_places, safe_boundaries

NAMES = sorted(BUILDERS)
EXACT = [
    "byt5", "byte_level", "byte_level_digits", "byte_level_llama3", "byte_level_whole", "llama", "llama_crossing",
    "llama_prepend", "raw", "raw_whole", "sentencepiece_library", "sentencepiece_library_unigram", "unigram",
    "unigram_raw", "unigram_raw_whole", "unigram_raw_words", "unigram_unsplit",
]  # fmt: skip

_KEPT: dict[str, TokenizerAdapter] = {}


def adapter_of(name: str) -> TokenizerAdapter:
    """Keep adapters over the examples: the cache of the package holds them weakly."""
    if name not in _KEPT:
        _KEPT[name] = from_tokenizer(small_tokenizer(name))
    return _KEPT[name]


def check_window(adapter: TokenizerAdapter, changes: list[bytes | float], at_start: bool) -> None:
    """Apply edits and compare with whole encoding after each."""
    window = AlignmentWindow(adapter, at_start)
    encode = adapter.encode_start if at_start else adapter.encode_continuation
    data = b""
    for change in changes:
        before = list(window.ids)
        if isinstance(change, bytes):
            same = window.append(change)
            data += change
        else:
            keep = int(change * len(data))
            same = window.cut(keep)
            data = data[:keep]
        assert window.data == data
        assert window.ids == encode(data)
        assert window.ids[:same] == before[:same]
        assert same in (len(before), len(window.ids)) or window.ids[same] != before[same]
        assert len(window.byte_ends) == len(window.ids)
        assert window.byte_ends == sorted(window.byte_ends)
        prefix = adapter.prefix(data, Place.START) if at_start else b""
        if adapter.join(window.ids) == prefix + data:
            for count, end in enumerate(window.byte_ends, 1):
                assert adapter.join(window.ids[:count]) == prefix + data[:end]


@pytest.mark.parametrize("name", EXACT)
@SETTINGS
@given(data=any_bytes())
def test_joined_bytes_are_the_bytes_put_in(name: str, data: bytes) -> None:
    adapter = adapter_of(name)
    assert adapter.is_exact
    assert adapter.join(adapter.encode_continuation(data)) == data
    assert adapter.holds(data)
    start = adapter.encode_start(data)
    assert adapter.join(start) in (data, adapter.start_prefix + data)


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(EXACT)))
@SETTINGS
@given(data=any_bytes())
def test_lossy_tokenizers_say_so_and_never_raise(name: str, data: bytes) -> None:
    adapter = adapter_of(name)
    assert adapter.loss
    assert not adapter.is_exact
    ids = adapter.encode_continuation(data)
    assert all(0 <= token_id < adapter.vocab_size for token_id in ids)
    assert adapter.holds(data) == (adapter.join(ids) == data)
    adapter.encode_start(data)
    adapter.encode_after_control(data)


@pytest.mark.parametrize("name", NAMES)
@SETTINGS
@given(changes=edits())
def test_windowed_ids_equal_whole_encoding(name: str, changes: list[bytes | float]) -> None:
    check_window(adapter_of(name), changes, at_start=False)


@pytest.mark.parametrize("name", NAMES)
@SETTINGS
@given(changes=edits())
def test_windowed_ids_equal_whole_encoding_from_the_start(name: str, changes: list[bytes | float]) -> None:
    check_window(adapter_of(name), changes, at_start=True)


@pytest.mark.parametrize("name", NAMES)
@SETTINGS
@given(text=texts(), following=texts())
def test_safe_places_stay_safe_whatever_follows(name: str, text: str, following: str) -> None:
    adapter = adapter_of(name)
    for place in adapter.split_offsets(text):
        left = utf8.encode(text[:place])
        right = utf8.encode(text[place] + following)
        both = adapter.encode_continuation(left) + adapter.encode_continuation(right)
        assert both == adapter.encode_continuation(left + right)


PATTERNS = {
    "gpt2": [GPT2_PATTERN],
    "llama3": [LLAMA3_PATTERN],
    "demo": [RAW_PATTERN],
    "gpt4o": [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "deepseek": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"],
    "deepseek-v3": [
        r"\p{N}{1,3}",
        "[一-龥぀-ゟ゠-ヿ]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    "gaps": [r"\p{L}+|\d+"],
    "words": [r" ?\S+|\s"],
}


@pytest.mark.parametrize("name", PATTERNS)
@SETTINGS
@given(left=texts(), boundary=st.sampled_from(BOUNDARIES), right=texts())
def test_safe_boundaries_of_known_patterns_are_safe_in_the_rust_engine(
    name: str, left: str, boundary: str, right: str
) -> None:
    steps = [
        {"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False} for p in PATTERNS[name]
    ]
    boundaries = safe_boundaries(steps, [])
    assert " " in boundaries
    splitter = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated") for p in PATTERNS[name]])
    text = left + boundary + right

    def split(part: str) -> list[str]:
        return [piece for piece, _ in splitter.pre_tokenize_str(part)]

    for place in find_places(text, boundaries):
        assert split(text[:place]) + split(text[place:]) == split(text)


@pytest.mark.parametrize("name", NAMES)
@SETTINGS
@given(data=any_bytes())
def test_batches_give_the_ids_of_single_calls(name: str, data: bytes) -> None:
    adapter = adapter_of(name)
    batch = [data, b" the", b"", data[1:], b"\xf0\x9f", "é日".encode(), b"ing", b" ", data]
    assert adapter.encode_continuations(batch) == [adapter.encode_continuation(part) for part in batch]


def own_ids(tokenizer: Any, text: str) -> list[int]:
    """Encode as the tokenizer itself does, special tokens neither added nor parsed."""
    return list(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))


@pytest.mark.parametrize("name", ["byte_level", "byte_level_digits", "byte_level_whole"])
@SETTINGS
@given(text=texts())
def test_byte_level_gives_the_tokenizers_own_ids(name: str, text: str) -> None:
    assert adapter_of(name).encode_continuation(text.encode()) == own_ids(small_tokenizer(name), text)


@pytest.mark.parametrize("name", ["llama", "llama_prepend", "llama_crossing", "llama_no_bytes"])
@SETTINGS
@given(text=texts())
def test_sentencepiece_gives_the_tokenizers_own_ids_at_the_start(name: str, text: str) -> None:
    if "▁" not in text:  # the tokenizer itself takes it for a space
        assert adapter_of(name).encode_start(text.encode()) == own_ids(small_tokenizer(name), text)


@pytest.mark.parametrize("name", ["raw", "raw_whole", "unigram_raw", "unigram_raw_whole", "unigram_raw_words"])
@SETTINGS
@given(text=texts())
def test_raw_pieces_give_the_tokenizers_own_ids(name: str, text: str) -> None:
    adapter = adapter_of(name)
    own = own_ids(small_tokenizer(name), text)
    if adapter.join(own) == text.encode():  # else the tokenizer itself took a name in the text for the token
        assert adapter.encode_continuation(text.encode()) == own
    else:
        assert any(mark in text for mark in ("<0x", "<s>", "</s>", "<unk>"))
