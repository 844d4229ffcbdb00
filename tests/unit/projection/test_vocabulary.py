"""Maps between two vocabularies: bytes in order, exact maps, and a cache that keeps nothing alive."""

from __future__ import annotations

import copy
import gc
import random
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
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
from uag.projection import SortedBytes, TokenizerPair, VocabularyMap, vocabulary, vocabulary_map
from uag.projection.first_tokens import NO_TOKEN, first_matching
from uag.projection.reader import TargetReader
from uag.projection.vocabulary import build_vocabulary_map

PAIRS = [
    ("byte_level", "llama"),
    ("llama", "byte_level"),
    ("byte_level_llama3", "unigram"),
    ("byte_level", "byt5"),
    ("byt5", "unigram_raw"),
    ("unigram_raw", "byte_level_digits"),
    ("llama_no_bytes", "byte_level"),
    ("wordpiece", "byte_level"),
    ("byte_level", "wordpiece"),
]


@pytest.fixture(autouse=True)
def _empty_cache() -> Iterator[None]:
    vocabulary._cache.clear()
    yield
    vocabulary._cache.clear()


# Bytes in order -----------------------------------------------------------------------------------------------------

# few bytes, among them the last one: prefixes and equal texts are common
small_bytes = st.lists(st.sampled_from([0x00, 0x61, 0x62, 0xFE, 0xFF]), max_size=5).map(bytes)
tables = st.lists(st.one_of(st.none(), small_bytes), max_size=20)


@SETTINGS
@given(table=tables, prefix=small_bytes)
def test_ranges_are_those_of_brute_force(table: list[bytes | None], prefix: bytes) -> None:
    order = SortedBytes(table)
    assert order.texts == sorted(text for text in table if text)
    assert [table[i] for i in order.ids.tolist()] == order.texts
    assert order.max_length == max((len(text) for text in table if text), default=0)

    low, high = order.prefix_range(prefix)
    assert sorted(order.ids[low:high].tolist()) == [i for i, t in enumerate(table) if t and t.startswith(prefix)]
    low, high = order.exact_range(prefix)
    assert sorted(order.ids[low:high].tolist()) == [i for i, t in enumerate(table) if t and t == prefix]
    longer = any(text and text.startswith(prefix) and len(text) > len(prefix) for text in table)
    assert order.has_longer(prefix) == longer


@SETTINGS
@given(table=st.lists(st.one_of(st.none(), st.binary(max_size=3)), max_size=30), prefix=st.binary(max_size=3))
def test_ranges_hold_for_any_bytes(table: list[bytes | None], prefix: bytes) -> None:
    order = SortedBytes(table)
    low, high = order.prefix_range(prefix)
    assert sorted(order.ids[low:high].tolist()) == [i for i, t in enumerate(table) if t and t.startswith(prefix)]


# few letters, so that pieces begin and contain each other; a lossy target writes one for another
small_pieces = st.lists(st.text("abc", min_size=1, max_size=4).map(str.encode), min_size=1, max_size=12, unique=True)


@SETTINGS
@given(target=small_pieces, draft=small_pieces, loses=st.booleans())
def test_a_map_is_what_loops_over_the_draft_find(target: list[bytes], draft: list[bytes], loses: bool) -> None:
    pair = ToyAdapter(target, lossy={b"b": b"a"} if loses else None), ToyAdapter(draft)
    maps = build_vocabulary_map(*pair)
    if not maps.is_identity:
        assert_as_loops_find(maps, *pair)


def assert_as_loops_find(maps: VocabularyMap, target: TokenizerAdapter, draft: TokenizerAdapter) -> None:
    """Compare a map with the obvious way to make it, one token after the other."""
    order, known = SortedBytes(target.token_bytes), set(target.token_bytes)
    first_target = np.full(draft.vocab_size, NO_TOKEN)
    is_closed = np.ones(draft.vocab_size, dtype=bool)
    num_one_to_one = 0
    texts = {draft_id: text for draft_id, text in enumerate(draft.token_bytes) if text}
    for (draft_id, text), ids in zip(texts.items(), target.encode_continuations(list(texts.values())), strict=True):
        first_target[draft_id] = first_matching(target.token_bytes, ids, text)
        is_closed[draft_id] = not order.has_longer(text)
        num_one_to_one += text in known
    for draft_id, same in map_controls(draft, target).items():
        if len(same) == 1 and same[0] in target.controls.control_ids:
            first_target[draft_id] = same[0]
    rng = np.random.default_rng(0)
    for draft_id in rng.integers(0, draft.vocab_size, 20).tolist():
        assert maps.first_target[draft_id] == first_target[draft_id]
    some = rng.integers(0, draft.vocab_size, (2, 40))
    assert np.array_equal(maps.first_target[some], first_target[some])
    reader = TargetReader(TokenizerPair(target, draft, maps))
    for target_id in {*first_target[some[0]].tolist(), *maps.control_to_target.values()} - {NO_TOKEN}:
        expected = np.flatnonzero((first_target == target_id) & is_closed)
        assert reader.closed_before(target_id).tolist() == expected.tolist()
    assert maps.has_reachable == bool((first_target[list(texts)] >= 0).any())
    assert np.array_equal(maps.first_target[np.arange(draft.vocab_size)], first_target)
    assert np.array_equal(maps.is_closed, is_closed)
    assert maps.num_one_to_one == num_one_to_one
    assert maps.num_reachable == (first_target[list(texts)] >= 0).sum()


def test_first_tokens_encode_what_is_asked_for_and_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = ToyAdapter([b"a", b"b", b"ab"]), ToyAdapter([b"aba", b"b", b"ab", b"c"])
    firsts = build_vocabulary_map(target, draft).first_target
    asked: list[bytes] = []
    encode = target._encode_one

    def note(data: bytes) -> list[int]:
        asked.append(data)
        return encode(data)

    monkeypatch.setattr(target, "_encode_one", note)
    assert firsts[1] == 1
    assert firsts[np.array([1, 0, 0])].tolist() == [1, 2, 2]
    assert asked == [b"b", b"aba"]
    assert firsts[np.arange(5)].tolist() == [2, 1, 2, NO_TOKEN, 3]
    assert sorted(asked) == [b"ab", b"aba", b"b", b"c"]


def test_a_map_needs_an_adapter_of_its_target_alive() -> None:
    target, draft = ToyAdapter([b"a"]), ToyAdapter([b"a", b"aa"])
    maps = vocabulary_map(target, draft)
    again = ToyAdapter([b"a"])
    assert vocabulary_map(again, draft) is maps
    del target
    gc.collect()
    assert maps.first_target[1] == 0
    del again
    gc.collect()
    assert maps.first_target[1] == 0  # known
    with pytest.raises(RuntimeError, match="is gone"):
        maps.first_target[0]


# Maps ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("target_name", "draft_name"), PAIRS)
def test_a_map_says_what_brute_force_says(target_name: str, draft_name: str) -> None:
    target, draft = from_tokenizer(small_tokenizer(target_name)), from_tokenizer(small_tokenizer(draft_name))
    maps = build_vocabulary_map(target, draft)
    assert not maps.is_identity
    assert maps.target_bytes == target.token_bytes
    assert maps.draft_bytes == draft.token_bytes
    assert maps.is_closed.shape == (draft.vocab_size,)
    target_texts = {text for text in target.token_bytes if text}
    num_one_to_one = num_reachable = 0
    for draft_id, text in enumerate(draft.token_bytes):
        first = int(maps.first_target[draft_id])
        if text is None:
            assert first == maps.control_to_target.get(draft_id, NO_TOKEN)
            assert maps.is_closed[draft_id]
            continue
        ids = target.encode_continuation(text)
        own = target.token_bytes[ids[0]] if ids else None
        assert first == (ids[0] if own and text.startswith(own) else NO_TOKEN)
        assert maps.is_closed[draft_id] == (not any(t.startswith(text) and t != text for t in target_texts))
        num_one_to_one += text in target_texts
        num_reachable += first != NO_TOKEN
    assert maps.num_one_to_one == num_one_to_one
    assert maps.num_reachable == num_reachable
    assert maps.num_draft_texts == sum(text is not None for text in draft.token_bytes)
    assert maps.control_to_draft == map_controls(target, draft)
    controls = {source: ids for source, ids in map_controls(draft, target).items() if len(ids) == 1}
    assert maps.control_to_target == {
        source: ids[0] for source, ids in controls.items() if ids[0] in target.controls.control_ids
    }


def test_exact_tokenizers_reach_every_text() -> None:
    for target_name, draft_name in (("byte_level", "llama"), ("unigram_raw", "byt5")):
        target, draft = from_tokenizer(small_tokenizer(target_name)), from_tokenizer(small_tokenizer(draft_name))
        maps = build_vocabulary_map(target, draft)
        assert 0 < maps.num_one_to_one <= maps.num_reachable == maps.num_draft_texts


def test_control_tokens_are_not_counted_as_reachable_text() -> None:
    target = ToyAdapter([b"a", b"b"])
    maps = build_vocabulary_map(target, ToyAdapter([b"a", b"x"]))
    assert maps.control_to_target == {2: 2}
    assert int(maps.first_target[2]) == 2
    assert (maps.num_reachable, maps.num_draft_texts) == (1, 2)
    same = build_vocabulary_map(target, ToyAdapter([b"a", b"b"]))
    assert same.is_identity
    assert (same.num_reachable, same.num_draft_texts, same.num_one_to_one) == (2, 2, 2)


def test_a_pair_that_shares_nothing_but_its_end_is_refused() -> None:
    target = ToyAdapter([b"a"])
    maps = build_vocabulary_map(target, ToyAdapter([b"x"]))
    assert maps.control_to_target
    assert maps.num_reachable == 0
    with pytest.raises(PairError, match="no bytes in common"):
        TokenizerPair.of(ToyAdapter([b"a"]), ToyAdapter([b"x"]))


def test_the_first_token_of_a_lossy_target_must_begin_the_text() -> None:
    target = ToyAdapter([b"a", b"b", b"ab"], lossy={b"x": b"a"})
    assert first_matching(target.token_bytes, target.encode_continuation(b"xb"), b"xb") == NO_TOKEN
    assert first_matching(target.token_bytes, target.encode_continuation(b"abx"), b"abx") == target.id_of("ab")
    assert first_matching(target.token_bytes, [], b"a") == NO_TOKEN
    assert first_matching(target.token_bytes, [target.eos_id], b"a") == NO_TOKEN


def test_two_ids_of_equal_bytes_are_both_kept() -> None:
    tokenizer = small_tokenizer("llama")
    target = from_tokenizer(small_tokenizer("byte_level"))
    maps = build_vocabulary_map(target, from_tokenizer(tokenizer))
    plain, twin = (tokenizer.get_vocab()[name] for name in ("a", "<0x61>"))
    low, high = maps.draft_sorted.exact_range(b"a")
    assert sorted(maps.draft_sorted.ids[low:high].tolist()) == sorted((plain, twin))
    assert maps.first_target[plain] == maps.first_target[twin] >= 0


def test_one_tokenizer_twice_is_the_identity() -> None:
    target, draft = from_tokenizer(llama()), from_tokenizer(llama())
    maps = build_vocabulary_map(target, draft)
    assert maps.is_identity
    assert maps.first_target[np.arange(target.vocab_size)].tolist() == list(range(target.vocab_size))
    assert maps.is_closed.all()
    assert maps.control_to_draft == {i: (i,) for i in target.controls.control_ids}
    assert maps.control_to_target == {i: i for i in target.controls.control_ids}
    assert not build_vocabulary_map(target, from_tokenizer(llama("always"))).is_identity


@pytest.mark.parametrize("build", [slow_python, end_of_word, llama])
def test_the_order_of_get_vocab_does_not_matter(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = build()
    shuffled = copy.deepcopy(plain)  # training anew may give other ids
    items = list(shuffled.get_vocab().items())
    random.Random(3).shuffle(items)
    monkeypatch.setattr(shuffled, "get_vocab", lambda: dict(items))
    assert list(shuffled.get_vocab()) != list(plain.get_vocab())
    other = from_tokenizer(small_tokenizer("byte_level"))
    first, second = from_tokenizer(plain), from_tokenizer(shuffled)
    for one, two in (
        (build_vocabulary_map(other, first), build_vocabulary_map(other, second)),
        (build_vocabulary_map(first, other), build_vocabulary_map(second, other)),
    ):
        every = np.arange(len(one.draft_bytes))
        assert np.array_equal(one.first_target[every], two.first_target[every])
        assert np.array_equal(one.is_closed, two.is_closed)
        assert (one.target_bytes, one.draft_bytes) == (two.target_bytes, two.draft_bytes)
        assert (one.control_to_draft, one.control_to_target) == (two.control_to_draft, two.control_to_target)
        assert np.array_equal(one.draft_sorted.ids, two.draft_sorted.ids)


# The cache ----------------------------------------------------------------------------------------------------------


def test_two_loads_of_a_pair_share_one_map() -> None:
    first = vocabulary_map(from_tokenizer(byte_level()), from_tokenizer(llama()))
    assert vocabulary_map(from_tokenizer(byte_level()), from_tokenizer(llama())) is first
    assert vocabulary_map(from_tokenizer(llama()), from_tokenizer(byte_level())) is not first
    assert vocabulary_map(from_tokenizer(byte_level()), from_tokenizer(llama("always"))) is not first


def test_the_cache_keeps_no_tokenizer_alive() -> None:
    target_tokenizer, draft_tokenizer = byte_level(), llama()
    target, draft = from_tokenizer(target_tokenizer), from_tokenizer(draft_tokenizer)
    maps = vocabulary_map(target, draft)
    dead = [weakref.ref(thing) for thing in (target_tokenizer, draft_tokenizer, target, draft)]
    del target_tokenizer, draft_tokenizer, target, draft
    gc.collect()
    assert [ref() for ref in dead] == [None] * 4
    assert vocabulary_map(from_tokenizer(byte_level()), from_tokenizer(llama())) is maps


def test_the_cache_forgets_the_pair_that_was_not_used_for_longest() -> None:
    target = ToyAdapter([b"a"])
    drafts = [ToyAdapter([b"a", bytes([98 + n])]) for n in range(vocabulary._MAX_CACHED_MAPS + 1)]
    maps = [vocabulary_map(target, draft) for draft in drafts[:-1]]
    assert vocabulary_map(target, drafts[0]) is maps[0]  # used again: the second is now the oldest
    vocabulary_map(target, drafts[-1])
    assert vocabulary_map(target, drafts[0]) is maps[0]
    assert vocabulary_map(target, drafts[1]) is not maps[1]


# Real pairs ---------------------------------------------------------------------------------------------------------


@pytest.mark.real_tokenizers
@pytest.mark.parametrize(("target_name", "draft_name"), [("qwen2.5", "smollm"), ("llama3", "llama2")])
def test_real_pairs_are_mapped_exactly(
    target_name: str, draft_name: str, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoTokenizer

    adapters: list[TokenizerAdapter] = []
    for name in (target_name, draft_name):
        folder = shared / "tokenizers" / name
        if not folder.is_dir():
            pytest.skip(f"no {name} among the shared tokenizers")
        adapters.append(from_tokenizer(AutoTokenizer.from_pretrained(folder)))
    target, draft = adapters
    assert target.token_bytes
    assert draft.token_bytes
    began = time.perf_counter()
    maps = build_vocabulary_map(target, draft)
    seconds = time.perf_counter() - began
    with capsys.disabled():
        print(f"\n{target_name} x {draft_name}: map of {target.vocab_size} x {draft.vocab_size} ids in {seconds:.2f} s")
    assert_as_loops_find(maps, target, draft)
    assert maps.num_one_to_one <= maps.num_reachable == maps.num_draft_texts
    texts = set(maps.target_sorted.texts)
    for draft_id in random.Random(1).sample(maps.draft_sorted.ids.tolist(), 500):
        text = draft.token_bytes[draft_id] or b""
        first = maps.target_bytes[maps.first_target[draft_id]]
        assert first
        assert text.startswith(first)
        if text in texts and maps.is_closed[draft_id]:
            assert target.join(target.encode_continuation(text)) == text
