"""To be described."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from transformers import DynamicCache, EncoderDecoderCache, cache_utils
from transformers.cache_utils import DynamicSlidingWindowLayer
from transformers.generation import utils as generation_utils

from uag.errors import UnsupportedError
from uag.hf.growing import BufferedLayer, begin_buffering

REWINDABLE = (
    BufferedLayer,
    *(
        getattr(cache_utils, name)
        for name in ("DynamicLayer", "DynamicSlidingWindowLayer", "DynamicIndexedLayer", "DummyLayer")
        if hasattr(cache_utils, name)
    ),
)


def cache_names() -> tuple[str, ...]:
    """Return the names under which models return their cache."""
    return tuple(generation_utils.ALL_CACHE_NAMES)


def dynamic_cache() -> Any:
    """Return a cache whose layers keep every position, whatever the model's window, and grow in place."""
    cache = DynamicCache()
    begin_buffering(cache)
    return cache


def encoder_decoder_cache() -> Any:
    """Return the same for an encoder-decoder."""
    return EncoderDecoderCache(dynamic_cache(), DynamicCache())


def windows(cache: Any) -> list[int | None]:
    """Return how many positions each self-attention layer of a cache sees, None for all."""
    if isinstance(cache, EncoderDecoderCache):
        cache = cache.self_attention_cache
    return [layer.sliding_window if is_sliding(layer) else None for layer in getattr(cache, "layers", ())]


def check_cache(cache: Any) -> None:
    """Refuse a cache that cannot be put back as it was before a rejected candidate.

    Raises:
        UnsupportedError: a static, quantized or recurrent cache, or none at all.
    """
    if cache is None:
        raise UnsupportedError(
            "The target keeps no cache that can be rewound (use_cache=False, or a recurrent model), so candidates "
            "cannot be checked. Pass use_cache=True, or call generate without an assistant."
        )
    if isinstance(cache, EncoderDecoderCache):
        cache = cache.self_attention_cache
    layers = getattr(cache, "layers", None)
    refused = sorted({type(layer).__name__ for layer in layers or () if type(layer) not in REWINDABLE})
    if layers is None or refused or not isinstance(cache, DynamicCache):
        what = ", ".join(refused) or type(cache).__name__
        raise UnsupportedError(
            f"The target's cache ({type(cache).__name__} with {what}) cannot be rewound after a rejected candidate. "
            "Use the default dynamic cache (drop cache_implementation and past_key_values), or call generate without "
            "an assistant."
        )


def self_attention_layers(cache: Any) -> list[Any]:
    """Return the layers of a cache that hold keys and values of the generated text."""
    return [layer for layer in layers_of(cache) if getattr(layer, "keys", None) is not None]


def layers_of(cache: Any) -> Any:
    if isinstance(cache, EncoderDecoderCache):
        cache = cache.self_attention_cache
    return getattr(cache, "layers", None) or ()


def is_sliding(layer: Any) -> bool:
    """Whether a layer keeps a window only."""
    return isinstance(layer, DynamicSlidingWindowLayer)


def outlives_call(cache: Any) -> bool:
    """Whether a cache belongs to the caller: it must end as plain decoding leaves it.

    Before 5.23 an empty cache that came through bare `custom_generate` cannot be told from the default one.
    """
    if cache is None or getattr(cache, "_is_user_defined", False):
        return cache is not None
    try:
        return bool(cache.get_seq_length() > 0)
    except ValueError:  # recurrent layers only: they count nothing, and are never put back
        return False


def crop(cache: Any, num_tokens: int) -> None:
    """Drop the last `num_tokens` positions; with 0, sliding layers that record still shrink to their window.

    With 0 a cache may be of any kind, or None: without a draft nothing is recorded and nothing is ever dropped.
    """
    layers = layers_of(cache)
    if layers and not any(getattr(layer, "is_initialized", True) for layer in layers):
        return  # a model that fills no cache; before transformers 5.20 such layers cannot be cropped
    if num_tokens or any(getattr(layer, "record_past", False) for layer in layers):
        cache.crop(-num_tokens)


def stop_recording(cache: Any) -> None:
    """Let sliding layers drop what leaves their window again."""
    for layer in layers_of(cache):
        if hasattr(layer, "record_past"):
            layer.record_past = False


_ROOM = 16
"""Slots behind moved ones: enough for the next pass, behind which they may be moved again."""


def take_slots(layers: Iterable[Any], index: torch.Tensor) -> None:
    """Let each row of each layer's cache keep the given slots, in the given order.

    Args:
        layers: cache layers with `keys` and `values` [rows, heads, slots, head_dim].
        index: [rows, num_kept] int64, the slot that each kept slot comes from.

    Whole slots are copied at once; `gather` would index every number by itself.
    """
    room = index.new_zeros((index.shape[0], _ROOM))  # whatever lies there is written over
    roomy = torch.cat([index, room], dim=1)
    known: dict[tuple[Any, ...], torch.Tensor] = {}

    def taken(cached: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        rows, heads, size, width = cached.shape
        key = (heads, size, slots.shape, cached.device)
        if key not in known:
            starts = torch.arange(0, rows * heads * size, size, device=cached.device).view(rows, heads, 1)
            known[key] = (starts + slots.to(cached.device)[:, None]).flatten()
        return cached.reshape(-1, width).index_select(0, known[key]).view(rows, heads, -1, width)

    for layer in layers:
        if isinstance(layer, BufferedLayer):
            layer.hold(taken(layer.keys, roomy), taken(layer.values, roomy), index.shape[1])
        else:
            layer.keys, layer.values = taken(layer.keys, index), taken(layer.values, index)
