"""Maps between two vocabularies and first target tokens, compared with brute force."""

import copy
import gc
import random
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tokenizers import byte_level, end_of_word, llama, slow_python, small_tokenizer
from tests.support.toys import ToyAdapter
from tests.unit.adapters.strategies import SETTINGS
from uag.adapters import TokenizerAdapter, from_tokenizer, map_controls
from uag.errors import PairError
from uag.projection import TokenizerPair, vocabulary
from uag.projection.pair import NO_TOKEN
from uag.projection.vocabulary import SortedBytes, vocabulary_map

PAIRS = [
    ("byte_level", "llama"),
    ("llama", "byte_level"),
    ("byte_level_llama3", "unigram"),
    ("byt5", "unigram_raw"),
    ("unigram_raw", "byte_level_digits"),
    ("llama_no_bytes", "byte_level"),
    ("wordpiece", "byte_level"),
    ("byte_level", "wordpiece"),
]

# few bytes, among them the last one: prefixes and equal texts are common
small_bytes = st.lists(st.sampled_from([0x00, 0x61, 0x62, 0xFE, 0xFF]), max_size=5).map(bytes)
tables = st.lists(st.one_of(st.none(), small_bytes), max_size=20)
# few letters, so that pieces are prefixes and parts of each other; a lossy target replaces one letter by another
small_pieces = st.lists(st.text("abc", min_size=1, max_size=4).map(str.encode), min_size=1, max_size=12, unique=True)


def pair_of(target: TokenizerAdapter, draft: TokenizerAdapter) -> TokenizerPair:
    """A pair, whether usable or not."""
    return TokenizerPair(target, draft, vocabulary_map(target, draft))


@SETTINGS
@given(table=tables, prefix=small_bytes)
def test_sorted_bytes_equal_brute_force(table: list[bytes | None], prefix: bytes) -> None:
    order = SortedBytes(table)
    assert order.texts == sorted(text for text in table if text)
    assert [table[i] for i in order.ids.tolist()] == order.texts
    assert order.max_length == max((len(text) for text in table if text), default=0)

    low, high = order.prefix_range(prefix)
    assert sorted(order.ids[low:high].tolist()) == [i for i, t in enumerate(table) if t and t.startswith(prefix)]
    low, high = order.exact_range(prefix)
    assert sorted(order.ids[low:high].tolist()) == [i for i, t in enumerate(table) if t and t == prefix]
    longer = [i for i, t in enumerate(table) if t and t.startswith(prefix) and t != prefix]
    assert order.has_longer(prefix) == bool(longer)
    starts, positions = order.neighbors(prefix)
    assert sorted(starts) == [i for i, text in enumerate(table) if text and prefix.startswith(text)]
    assert sorted(order.ids[slice(*positions or (0, 0))].tolist()) == longer


def check_pair(target: TokenizerAdapter, draft: TokenizerAdapter) -> None:
    """Compare a pair's maps with a straightforward computation, token by token."""
    pair = pair_of(target, draft)
    maps, order = pair.maps, SortedBytes(target.token_bytes)
    first_target = np.full(draft.vocab_size, NO_TOKEN)
    is_closed = np.ones(draft.vocab_size, dtype=bool)
    texts = {draft_id: text for draft_id, text in enumerate(draft.token_bytes) if text}
    for draft_id, text in texts.items():
        ids = target.encode_continuation(text)
        first = target.token_bytes[ids[0]] if ids else None
        first_target[draft_id] = ids[0] if first and text.startswith(first) else NO_TOKEN
        is_closed[draft_id] = not order.has_longer(text)
    controls = {source: ids for source, ids in map_controls(draft, target).items() if len(ids) == 1}
    single = {source: ids[0] for source, ids in controls.items() if ids[0] in target.controls.control_ids}
    first_target[list(single)] = list(single.values())

    assert not maps.is_identity
    assert (maps.target_bytes, maps.draft_bytes) == (target.token_bytes, draft.token_bytes)
    assert (maps.control_to_draft, maps.control_to_target) == (map_controls(target, draft), single)
    rng = np.random.default_rng(0)
    for draft_id in rng.integers(0, draft.vocab_size, 20).tolist():
        assert pair.first_target[draft_id] == first_target[draft_id]
        assert draft_id not in texts or pair.first_target.of_text(texts[draft_id]) == first_target[draft_id]
    some = rng.integers(0, draft.vocab_size, (2, 40))
    assert np.array_equal(pair.first_target[some], first_target[some])
    assert np.array_equal(pair.first_target[np.arange(draft.vocab_size)], first_target)
    assert np.array_equal(maps.is_closed, is_closed)
    assert sorted(maps.draft_sorted.ids.tolist()) == sorted(texts)


@SETTINGS
@given(target=small_pieces, draft=small_pieces, is_lossy=st.booleans())
def test_maps_of_toy_pairs_equal_brute_force(target: list[bytes], draft: list[bytes], is_lossy: bool) -> None:
    adapters = ToyAdapter(target, lossy={b"b": b"a"} if is_lossy else None), ToyAdapter(draft)
    if adapters[0].fingerprint != adapters[1].fingerprint:
        check_pair(*adapters)


@pytest.mark.parametrize(("target_name", "draft_name"), PAIRS)
def test_maps_of_small_pairs_equal_brute_force(target_name: str, draft_name: str) -> None:
    target, draft = from_tokenizer(small_tokenizer(target_name)), from_tokenizer(small_tokenizer(draft_name))
    check_pair(target, draft)
    if target.is_exact:
        pair = pair_of(target, draft)
        assert (pair.first_target[pair.maps.draft_sorted.ids] != NO_TOKEN).all()


def test_each_draft_token_is_encoded_once_when_first_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = ToyAdapter([b"a", b"b", b"ab"]), ToyAdapter([b"aba", b"b", b"ab", b"c"])
    firsts = pair_of(target, draft).first_target
    encoded: list[bytes] = []
    encode = target._encode

    def note(data: bytes) -> list[int]:
        encoded.append(data)
        return encode(data)

    monkeypatch.setattr(target, "_encode", note)
    assert firsts[1] == 1
    assert firsts[np.array([1, 0, 0])].tolist() == [1, 2, 2]
    assert encoded == [b"b", b"aba"]
    assert firsts[np.arange(5)].tolist() == [2, 1, 2, NO_TOKEN, 3]
    assert sorted(encoded) == [b"ab", b"aba", b"b", b"c"]
    assert [firsts.of_text(b"abab") for _ in range(2)] == [2, 2]
    assert len(encoded) == 5


def test_a_pair_that_shares_only_its_end_token_is_refused() -> None:
    assert pair_of(ToyAdapter([b"a"]), ToyAdapter([b"x"])).maps.control_to_target
    with pytest.raises(PairError, match="no bytes in common"):
        TokenizerPair.of(ToyAdapter([b"a"]), ToyAdapter([b"x"]))


def test_one_tokenizer_twice_is_the_identity() -> None:
    target, draft = from_tokenizer(llama()), from_tokenizer(llama())
    pair = pair_of(target, draft)
    assert pair.maps.is_identity
    assert pair.first_target[np.arange(target.vocab_size)].tolist() == list(range(target.vocab_size))
    assert pair.maps.is_closed.all()
    assert pair.maps.control_to_draft == {i: (i,) for i in target.controls.control_ids}
    assert pair.maps.control_to_target == {i: i for i in target.controls.control_ids}
    assert not vocabulary_map(target, from_tokenizer(llama("always"))).is_identity


@pytest.mark.parametrize("build", [slow_python, end_of_word, llama])
def test_the_order_of_get_vocab_does_not_matter(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = build()
    shuffled = copy.deepcopy(plain)  # retraining may change the ids
    items = list(shuffled.get_vocab().items())
    random.Random(3).shuffle(items)
    monkeypatch.setattr(shuffled, "get_vocab", lambda: dict(items))
    assert list(shuffled.get_vocab()) != list(plain.get_vocab())
    first, second = from_tokenizer(plain), from_tokenizer(shuffled)
    assert first.token_bytes == second.token_bytes
    assert first.fingerprint == second.fingerprint


def test_two_loads_of_a_pair_share_one_map_that_keeps_no_tokenizer_alive() -> None:
    target_tokenizer, draft_tokenizer = byte_level(), llama()
    target, draft = from_tokenizer(target_tokenizer), from_tokenizer(draft_tokenizer)
    maps = vocabulary_map(target, draft)
    assert vocabulary_map(draft, target) is not maps
    assert vocabulary_map(target, from_tokenizer(llama("always"))) is not maps
    dead = [weakref.ref(thing) for thing in (target_tokenizer, draft_tokenizer, target, draft)]
    del target_tokenizer, draft_tokenizer, target, draft
    gc.collect()
    assert [ref() for ref in dead] == [None] * 4
    assert vocabulary_map(from_tokenizer(byte_level()), from_tokenizer(llama())) is maps


def test_a_released_pair_goes_without_the_cyclic_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its maps are large, and servers switch the collector off."""
    monkeypatch.setattr(vocabulary, "_maps", weakref.WeakValueDictionary())  # another test's pair may share them
    pair = TokenizerPair.of(*(from_tokenizer(small_tokenizer(name)) for name in ("byte_level", "llama")))
    assert pair.first_target.of_text(b"one two") != NO_TOKEN
    assert pair.maps.target_sorted.neighbors(b"one").starts
    kept = [weakref.ref(each) for each in (pair, pair.maps, pair.first_target, pair.maps.target_sorted)]
    gc.disable()
    try:
        del pair
        assert [each() for each in kept] == [None] * 4
    finally:
        gc.enable()
