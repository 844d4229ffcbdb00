"""Creates static caches, whose tensors keep their size and address, and rolls them back.

A full layer is rolled back by lowering its length: the mask hides the slots behind it, and the next pass overwrites
them. A sliding layer whose window is full shifts its slots in every pass, so it is restored from a copy.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import StaticCache
from transformers.cache_utils import StaticLayer, StaticSlidingWindowLayer

_KINDS = (StaticLayer, StaticSlidingWindowLayer)


def is_static(cache: Any) -> bool:
    """Whether this is a static cache that can be rolled back."""
    if type(cache) is not StaticCache or cache.offloading:
        return False
    return all(type(layer) in _KINDS for layer in cache.layers)


def static_cache(model: Any, num_slots: int, old: Any = None) -> Any:
    """Return a static cache, with the content of a smaller one, whose layers also keep positions outside a window."""
    cache = StaticCache(config=model.config.get_text_config(decoder=True), max_cache_len=num_slots)
    cache.layers = [StaticLayer(num_slots) for _ in cache.layers]
    for layer, smaller in () if old is None else zip(cache.layers, old.layers, strict=True):
        if smaller.is_initialized:
            layer.lazy_initialization(smaller.keys, smaller.values)
            layer.keys[:, :, : smaller.max_cache_len] = smaller.keys
            layer.values[:, :, : smaller.max_cache_len] = smaller.values
    return cache


def set_length(cache: Any, num_tokens: int) -> None:
    """Make the next pass write behind the first `num_tokens` slots of a cache without windows."""
    lengths = [layer.cumulative_length for layer in cache.layers]
    torch._foreach_zero_(lengths)  # on a GPU, one kernel for all layers
    torch._foreach_add_(lengths, num_tokens)


def wipe(cache: Any, first: int) -> None:
    """Zero the slots from `first` on: the mask gives them weight 0, but 0 times NaN is NaN."""
    for layer in cache.layers:
        if layer.is_initialized:
            layer.keys[:, :, first:] = 0
            layer.values[:, :, first:] = 0


def capacity(cache: Any) -> int:
    """Return the number of slots of the layers that keep every position."""
    return min((layer.max_cache_len for layer in cache.layers if type(layer) is StaticLayer), default=2**62)


def max_width(cache: Any) -> int:
    """Return the most tokens per row of a pass that can be rolled back: those that every window holds."""
    return min(int(layer.max_cache_len) for layer in cache.layers)


@contextmanager
def constant_lengths(cache: Any) -> Iterator[None]:
    """Replace the lengths of windows, which are Python integers, by constants during a compiled pass.

    A CUDA graph would be recorded for each value. A pass only compares them with the size of the window, and no
    compiled pass fills a window (`Limits.budget`).
    """
    changes = []
    for layer in cache.layers:
        if type(layer) is StaticSlidingWindowLayer:
            constant = layer.max_cache_len if layer.cumulative_length_int >= layer.max_cache_len else 0
            changes.append((layer, layer.cumulative_length_int - constant))
            layer.cumulative_length_int = constant
    try:
        yield
    finally:
        for layer, change in changes:
            layer.cumulative_length_int += change


Windows = dict[int, tuple[int, torch.Tensor, torch.Tensor]]
"""Sliding layers before a pass, by index: their number of tokens, and copies of their keys and values."""


def copy_windows(cache: Any, width: int) -> Windows:
    """Copy the sliding layers whose slots the next pass shifts; `width` is at most the size of a window."""
    return {
        index: (layer.cumulative_length_int, layer.keys.clone(), layer.values.clone())
        for index, layer in enumerate(cache.layers)
        if type(layer) is StaticSlidingWindowLayer and layer.cumulative_length_int + width > layer.max_cache_len
    }


def crop(cache: Any, num_tokens: int, windows: Windows, width: int) -> None:
    """Drop the last `num_tokens` of the `width` tokens of the last pass; `windows` are copies from before it."""
    if not num_tokens:
        return
    lengths = []
    for index, layer in enumerate(cache.layers):
        if index in windows:
            _restore(layer, *windows[index], width, width - num_tokens)
            continue
        lengths.append(layer.cumulative_length)
        if type(layer) is StaticSlidingWindowLayer:
            layer.cumulative_length_int -= num_tokens
    if lengths:
        torch._foreach_sub_(lengths, num_tokens)  # on a GPU, one kernel for all layers


def _restore(layer: Any, length: int, keys: torch.Tensor, values: torch.Tensor, width: int, num_kept: int) -> None:
    size = layer.max_cache_len
    for tensor, before in ((layer.keys, keys), (layer.values, values)):
        new = tensor[:, :, size - width :][:, :, :num_kept]
        kept = torch.cat([before[:, :, :length], new], dim=2)[:, :, -size:]
        tensor[:, :, : kept.shape[2]].copy_(kept)
    layer.cumulative_length_int = length + num_kept
    if length + num_kept < size:
        layer.cumulative_length.fill_(length + num_kept)
