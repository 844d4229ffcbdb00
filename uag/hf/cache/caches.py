"""Inspects caches, and moves, cuts and rolls back their slots. Keys and values are [rows, heads, slots, head_dim]."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from transformers import DynamicCache, EncoderDecoderCache, cache_utils
from transformers.cache_utils import DynamicIndexedLayer, DynamicLayer, DynamicSlidingWindowLayer, StaticLayer
from transformers.generation import utils as generation_utils

from uag.hf.cache.growing import BufferedLayer
from uag.hf.cache.states import KEPT_BY_STATE, States, cut_keys, has_state, is_recurrent
from uag.hf.cache.static import is_static
from uag.hf.inspection import per_call

_DUMMY = tuple(filter(None, [getattr(cache_utils, "DummyLayer", None)]))  # not in older releases
WITH_KEYS = DynamicLayer, DynamicSlidingWindowLayer  # layers of a dynamic cache that keep nothing but keys and values

_RAGGED: tuple[type, ...] = (*WITH_KEYS, *_DUMMY)
"""Layer classes that keep only keys and values, so that the rows of a cache may differ in length."""

REWINDABLE: tuple[type, ...] = (*_RAGGED, *KEPT_BY_STATE, DynamicIndexedLayer)

CACHE = generation_utils.ALL_CACHE_NAMES[0]
"""The name under which most models take and return their cache: `past_key_values`, and `cache` since 5.24."""

CACHE_INPUTS = tuple(dict.fromkeys((CACHE, "past_key_values", "cache_params")))
"""Names under which models, of this release or older ones, take a cache of transformers' own classes."""

CACHE_NAMES = tuple(generation_utils.ALL_CACHE_NAMES)  # names of a cache among the arguments that `generate` prepares


def cache_in(kwargs: dict[str, Any]) -> Any:
    """Return the cache among a model's keyword arguments, under any of the names that models use, or None."""
    return next((kwargs[name] for name in CACHE_NAMES if kwargs.get(name) is not None), None)


def replace(kwargs: dict[str, Any], cache: Any) -> None:
    """Replace the cache among a model's keyword arguments, under the name that the model uses."""
    kwargs.update((name, cache) for name in CACHE_NAMES if kwargs.get(name) is not None)


def default_cache(model: Any) -> Any:
    """Return an empty cache like the one that `generate` creates for a model."""
    try:
        cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    except (AttributeError, KeyError, TypeError, ValueError):
        cache = DynamicCache()  # a config that does not describe its layers
    return EncoderDecoderCache(cache, DynamicCache()) if model.config.is_encoder_decoder else cache


@per_call
def default_layers(model: Any) -> tuple[Any, ...]:
    """Return the empty layers of a model's default cache."""
    return tuple(_layers(default_cache(model)))


def dynamic_cache(*, is_encoder_decoder: bool = False) -> Any:
    """Return a cache whose layers keep every position, including those outside a window, and grow in place."""
    cache = DynamicCache()
    cache.layer_class_to_replicate = BufferedLayer
    return EncoderDecoderCache(cache, DynamicCache()) if is_encoder_decoder else cache


def cache_with_states(model: Any) -> Any:
    """Return a model's default cache with attention layers that keep every position and grow in place."""
    cache = default_cache(model)
    for index, layer in enumerate(cache.layers):
        if is_sliding(layer) and has_state(layer):
            cache.layers[index] = cache_utils.LinearAttentionAndFullAttentionLayer(layer.number_of_states)
        elif is_sliding(layer) or type(layer) is DynamicLayer:
            cache.layers[index] = BufferedLayer()
    return cache


def refusal(cache: Any) -> str:
    """Return why a cache cannot be rolled back before a rejected candidate, or an empty string."""
    if cache is None:
        return "the target keeps no cache that can be rewound (use_cache=False, or its own state)"
    if is_static(cache):
        return ""
    name = type(cache).__name__
    if isinstance(cache, EncoderDecoderCache):
        cache = cache.self_attention_cache
    if getattr(cache, "offloading", False):
        return "the target's cache is offloaded while its passes run (drop cache_implementation='offloaded')"
    layers = getattr(cache, "layers", None)
    refused = sorted({type(layer).__name__ for layer in layers or () if type(layer) not in REWINDABLE})
    if layers is None or refused or not isinstance(cache, DynamicCache):
        what = ", ".join(refused) or type(cache).__name__
        return (
            f"the target's cache ({name} with {what}) cannot be rewound after a rejected candidate; the default "
            f"dynamic cache can (drop cache_implementation and {CACHE})"
        )
    return ""


def self_attention_layers(cache: Any) -> list[Any]:
    """Return the layers of a cache that hold keys and values of the generated text."""
    return [layer for layer in _layers(cache) if getattr(layer, "keys", None) is not None]


def _layers(cache: Any) -> Any:
    if isinstance(cache, EncoderDecoderCache):
        cache = cache.self_attention_cache
    return getattr(cache, "layers", None) or ()


def is_sliding(layer: Any) -> bool:
    """Whether a layer keeps only a window."""
    return isinstance(layer, DynamicSlidingWindowLayer)


def can_be_ragged(cache: Any) -> bool:
    """Return whether the rows of a cache may differ in length, because all layers keep only keys and values."""
    return all(type(layer) in (StaticLayer, *_RAGGED) for layer in _layers(cache))


def has_states(cache: Any) -> bool:
    """Return whether any layer keeps a state instead of positions."""
    return any(has_state(layer) for layer in _layers(cache))


def has_recurrent_states(cache: Any) -> bool:
    """Whether any layer's state can only be restored from a copy; known after the first pass."""
    return any(is_recurrent(layer) for layer in _layers(cache))


def copy_states(cache: Any) -> States:
    """Copy the states that cannot be cropped."""
    return States([layer for layer in _layers(cache) if is_recurrent(layer)])


def length(cache: Any) -> int:
    """Return the number of positions in a cache; 0 without a cache, or if no layer counts them."""
    if cache is None:
        return 0
    try:
        return int(cache.get_seq_length())
    except ValueError:  # states only
        return 0


def outlives_call(cache: Any) -> bool:
    """Whether the caller owns a cache, so that its final state must match plain decoding's.

    Before 5.23, an empty cache passed with `custom_generate` cannot be distinguished from the default one.
    """
    if cache is None or getattr(cache, "_is_user_defined", False):
        return cache is not None
    return length(cache) > 0


def record_past(cache: Any, *, is_on: bool = True) -> None:
    """Make layers that keep only the latest positions keep more of them until the next `crop`, or end this."""
    skips_states = is_on and has_recurrent_states(cache)
    for layer in _layers(cache):
        if hasattr(layer, "record_past") and (is_sliding(layer) or not skips_states):
            layer.record_past = is_on


def crop(cache: Any, num_tokens: int) -> None:
    """Drop the last `num_tokens` positions, except of recurrent states; with 0, recording layers only shrink."""
    layers = _layers(cache)
    if not num_tokens and not any(vars(layer).get("record_past") for layer in layers):
        return
    if has_recurrent_states(cache):
        for layer in layers:
            if is_recurrent(layer):
                cut_keys(layer, num_tokens)
            else:
                layer.crop(-num_tokens)
        return
    if layers and not any(getattr(layer, "is_initialized", True) for layer in layers):
        return  # the model fills no cache; before transformers 5.20, such layers cannot be cropped
    cache.crop(-num_tokens)


_SPARE_SLOTS = 16  # spare slots after `take_slots`


def take_slots(layers: Iterable[Any], index: torch.Tensor) -> None:
    """Select slots of each layer: `index` [rows, num_kept] int64 is the old slot of each kept one.

    Copies whole slots at once, unlike `gather`. A static layer keeps its tensors, and its other slots their content.
    """
    spare = index.new_zeros((index.shape[0], _SPARE_SLOTS))  # overwritten later
    with_spare = torch.cat([index, spare], dim=1)
    flat_indices: dict[tuple[Any, ...], torch.Tensor] = {}

    def taken(cached: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        rows, heads, size, width = cached.shape
        key = (heads, size, slots.shape, cached.device)
        if key not in flat_indices:
            starts = torch.arange(0, rows * heads * size, size, device=cached.device).view(rows, heads, 1)
            flat_indices[key] = (starts + slots.to(cached.device)[:, None]).flatten()
        return cached.reshape(-1, width).index_select(0, flat_indices[key]).view(rows, heads, -1, width)

    for layer in layers:
        if isinstance(layer, BufferedLayer):
            layer.hold(taken(layer.keys, with_spare), taken(layer.values, with_spare), index.shape[1])
        elif isinstance(layer, StaticLayer):
            for tensor in (layer.keys, layer.values):
                tensor[:, :, : index.shape[1]] = taken(tensor, index)
        else:
            layer.keys, layer.values = taken(layer.keys, index), taken(layer.values, index)


def shift_rows(cache: Any, shifts: Sequence[int]) -> None:
    """Shift each row's slots to the right: the last ones are dropped, and the first ones are undefined."""
    layers = self_attention_layers(cache)
    for size in {layer.keys.shape[2] for layer in layers}:  # sliding layers hold fewer slots
        index = (torch.arange(size)[None] - torch.tensor(list(shifts))[:, None]).clamp_(min=0)
        take_slots([layer for layer in layers if layer.keys.shape[2] == size], index)


def cut_slots(cache: Any, first: int, end: int | None = None) -> None:
    """Keep the slots from `first` up to `end` (None: the last); static layers keep theirs, which the mask hides."""
    for layer in self_attention_layers(cache):
        if isinstance(layer, StaticLayer):
            continue
        layer.keys, layer.values = layer.keys[:, :, first:end], layer.values[:, :, first:end]
