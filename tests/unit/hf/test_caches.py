"""Caches that grow in place hold what transformers' own hold; copies of states; a cache that cannot be rolled back."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DynamicCache, LlamaConfig
from transformers.cache_utils import DynamicLayer

from uag.hf.cache import caches
from uag.hf.cache.caches import dynamic_cache, take_slots
from uag.hf.cache.growing import BufferedLayer
from uag.hf.cache.states import MAX_COPIES, Copies


def test_an_offloaded_cache_is_refused_and_the_default_one_is_not() -> None:
    config = LlamaConfig(hidden_size=32, num_attention_heads=4, num_hidden_layers=2)
    offloaded = DynamicCache(config=config)
    offloaded.offloading = True
    assert "offloaded while its passes run" in caches.refusal(offloaded)
    assert caches.refusal(DynamicCache(config=config)) == ""


def filled(lengths: range) -> Copies[int]:
    copies = Copies[int]()
    for length in lengths:
        copies.thin_out()
        copies.by_length[length] = length
    return copies


@pytest.mark.parametrize("max_copies", [3, 4, 5, MAX_COPIES])
@pytest.mark.parametrize("end", [12, 390, 399, 400])
def test_recent_copies_are_dense_and_the_first_one_remains(
    max_copies: int, end: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uag.hf.cache.states.MAX_COPIES", max_copies)
    copies = filled(range(10, end))
    num_dense = min(max_copies // 2 + 1, end - 10)
    assert list(copies.by_length)[-num_dense:] == list(range(end - num_dense, end))
    assert min(copies.by_length) == 10
    assert len(copies.by_length) <= max_copies


def test_dropped_copies_are_no_longer_found() -> None:
    copies = filled(range(10, 15))
    copies.drop(12)
    assert list(copies.by_length) == [10, 11]
    assert (copies.nearest(20), copies.nearest(10), copies.nearest(9)) == (11, 10, 0)


ROWS, HEADS, SIZE = 3, 2, 4


def states(num_slots: int, seed: int, num_rows: int = ROWS, size: int = SIZE) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((num_rows, HEADS, num_slots, size), generator=generator)


def grow(cache: Any, num_slots: int, seed: int = 0, num_rows: int = ROWS) -> None:
    """Append slots to a cache of one layer; values are wider than keys, as in some models."""
    cache.update(states(num_slots, seed, num_rows), states(num_slots, seed + 1, num_rows, SIZE + 1), 0)


STEP = st.one_of(
    st.tuples(st.just("grow"), st.integers(1, 40)),
    st.tuples(st.just("crop"), st.integers(1, 6)),
    st.tuples(st.just("trim"), st.integers(1, 3)),
    st.tuples(st.just("shift"), st.lists(st.integers(0, 4), min_size=ROWS, max_size=ROWS)),
    st.tuples(st.just("select"), st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=ROWS)),
)


def change(cache: Any, what: str, how: Any, seed: int) -> None:
    """Apply an operation of the decoding loop to a cache."""
    layer = cache.layers[0]
    num_rows, _, num_slots, _ = layer.keys.shape
    if what == "grow":
        grow(cache, how, seed, num_rows)
    elif what == "crop" and how < num_slots:
        cache.crop(-how)
    elif what == "trim" and how < num_slots:
        layer.keys, layer.values = layer.keys[:, :, how:], layer.values[:, :, how:]
    elif what == "shift":
        take_slots([layer], (torch.arange(num_slots)[None] - torch.tensor(how[:num_rows])[:, None]).clamp_(min=0))
    elif what == "select":
        rows = torch.tensor([row % num_rows for row in how])
        layer.keys, layer.values = layer.keys[rows], layer.values[rows]


def check_equal(cache: Any, plain: Any) -> None:
    assert torch.equal(cache.layers[0].keys, plain.layers[0].keys)
    assert torch.equal(cache.layers[0].values, plain.layers[0].values)
    assert cache.get_seq_length() == plain.get_seq_length()


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 80), st.lists(st.tuples(STEP, st.booleans()), max_size=25))
def test_it_holds_what_the_plain_cache_holds(first: int, steps: list[tuple[tuple[str, Any], bool]]) -> None:
    plain, buffered = DynamicCache(), dynamic_cache()
    with torch.no_grad():
        grow(plain, first)
        grow(buffered, first)
    for seed, ((what, how), is_inference) in enumerate(steps):
        with torch.inference_mode(is_inference), torch.no_grad():
            for cache in (plain, buffered):
                change(cache, what, how, 10 * seed)
        check_equal(buffered, plain)


@torch.no_grad()
def test_slots_stay_where_they_are() -> None:
    cache = dynamic_cache()
    grow(cache, 512)
    layer = cache.layers[0]
    places = set()
    for step in range(100):
        grow(cache, 6, step)
        cache.crop(-5)
        places.add((layer.keys.data_ptr(), layer.values.data_ptr()))
    assert len(places) == 1  # 512 slots have capacity for 128 more
    assert cache.get_seq_length() == 612


@torch.no_grad()
def test_small_caches_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uag.hf.cache.growing._SMALL", ROWS * HEADS * SIZE * 20)
    plain, cache = DynamicCache(), dynamic_cache()
    for step in range(30):
        grow(cache, 1, step)
        grow(plain, 1, step)
        assert (cache.layers[0].buffers is None) == (step < 20)
    check_equal(cache, plain)


@torch.no_grad()
def test_moved_slots_have_spare_slots_after_them() -> None:
    cache = dynamic_cache()
    grow(cache, 20)
    layer = cache.layers[0]
    take_slots([layer], torch.arange(20).expand(ROWS, -1))
    at = layer.keys.data_ptr(), layer.values.data_ptr()
    grow(cache, 5)
    assert (layer.keys.data_ptr(), layer.values.data_ptr()) == at
    assert layer.keys.shape[2] == 25


@torch.no_grad()
def test_tensors_of_others_are_not_written_to() -> None:
    plain, cache = DynamicCache(), dynamic_cache()
    for other in (plain, cache):
        grow(other, 2)
        grow(other, 3, 2)
    num_slots = cache.layers[0].buffers[0].shape[2]  # with the same layout as the layer's own
    whole = states(num_slots, 0), states(num_slots, 1, size=SIZE + 1)
    before = [part.clone() for part in whole]
    for other in (plain, cache):
        other.layers[0].keys, other.layers[0].values = whole[0][:, :, :10], whole[1][:, :, :10]
        grow(other, 3, 5)
    assert all(torch.equal(a, b) for a, b in zip(before, whole, strict=True))
    check_equal(cache, plain)


def test_gradients_flow_as_through_the_plain_cache() -> None:
    new = states(3, 0).requires_grad_()
    keys, _ = dynamic_cache().update(new, states(3, 1), 0)
    keys.sum().backward()
    assert new.grad is not None


@torch.no_grad()
def test_other_data_types_are_concatenated() -> None:
    """Keys in float32 with values in bfloat16, as from float32 norms before half-precision layers."""
    plain, cache = DynamicCache(), dynamic_cache()
    for seed in range(3):
        for other in (plain, cache):
            other.update(states(5, seed), states(5, seed + 1).bfloat16(), 0)
    assert cache.layers[0].values.dtype == plain.layers[0].values.dtype
    check_equal(cache, plain)


@torch.no_grad()
def test_cross_attention_is_not_changed() -> None:
    cache = dynamic_cache(is_encoder_decoder=True)
    grow(cache.self_attention_cache, 3)
    grow(cache.cross_attention_cache, 3)
    assert type(cache.self_attention_cache.layers[0]) is BufferedLayer
    assert type(cache.cross_attention_cache.layers[0]) is DynamicLayer
