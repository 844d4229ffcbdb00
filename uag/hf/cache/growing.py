"""A key-value cache that grows in place.

transformers' dynamic cache appends by concatenation, which copies all keys and values at every pass. This takes a third
of a small model's pass at batch 8 and 1,500 tokens. Here each layer reserves spare slots and writes new tokens there.
Attention reads a view of the filled part. The values are identical.
"""

from typing import Any

import torch
from transformers.cache_utils import DynamicLayer

_MIN_SPARE, _SPARE_DIVISOR = 64, 8
"""Spare slots: 64 plus an eighth of the filled ones. More spare slots mean fewer copies but use more memory."""

_SMALL = 1 << 17
"""Number of elements below which copying is cheaper than appending in place (half a megabyte in float32, on a CPU)."""


class BufferedLayer(DynamicLayer):
    """A `DynamicLayer` whose keys and values [rows, heads, slots, head_dim] are views of larger tensors.

    Other code may crop or replace them. Slots are appended in place if the views are still part of those tensors and
    enough spare slots follow, and to new tensors otherwise.
    """

    keys: torch.Tensor
    values: torch.Tensor
    buffers: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append slots, in place if possible, and return all keys and values."""
        if (
            torch.compiler.is_compiling()
            or torch.is_grad_enabled()
            or not self.is_initialized
            or self.keys.numel() < _SMALL
            or not _is_like(self.keys, key_states)
            or not _is_like(self.values, value_states)
        ):
            super().update(key_states, value_states, *args, **kwargs)
            return self.keys, self.values
        keys, values = self.buffers or (None, None)
        keys, self.keys = _append(keys, self.keys, key_states)
        values, self.values = _append(values, self.values, value_states)
        self.buffers = keys, values
        return self.keys, self.values

    def hold(self, keys: torch.Tensor, values: torch.Tensor, num_slots: int) -> None:
        """Use these tensors, whose first `num_slots` slots are filled."""
        self.buffers = keys, values
        self.keys, self.values = keys[:, :, :num_slots], values[:, :, :num_slots]


def _is_like(filled: torch.Tensor, new: torch.Tensor) -> bool:
    """Whether tensors differ only in their number of slots; concatenation would convert or reject others."""
    return (
        type(new) is torch.Tensor
        and filled.dim() == new.dim() == 4
        and filled.dtype == new.dtype
        and filled.device == new.device
        and filled.shape[:2] == new.shape[:2]
        and filled.shape[3] == new.shape[3]
    )


def _append(buffer: torch.Tensor | None, filled: torch.Tensor, new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tensor that holds all slots, and a view of its filled part with `new` at the end."""
    num_filled, num_new = filled.shape[2], new.shape[2]
    size = num_filled + num_new
    if buffer is not None and _lies_in(filled, buffer):
        start = filled.storage_offset() // filled.stride(2)
        if start + size <= buffer.shape[2]:
            buffer.narrow(2, start + num_filled, num_new).copy_(new)
            return buffer, buffer.narrow(2, start, size)
    buffer = new.new_empty((*new.shape[:2], size + _MIN_SPARE + size // _SPARE_DIVISOR, new.shape[3]))
    buffer.narrow(2, 0, num_filled).copy_(filled)
    buffer.narrow(2, num_filled, num_new).copy_(new)
    return buffer, buffer.narrow(2, 0, size)


def _lies_in(filled: torch.Tensor, buffer: torch.Tensor) -> bool:
    """Whether `filled` is a view of consecutive slots of `buffer`, which may be written to."""
    return (
        filled.stride() == buffer.stride()
        and filled.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr()
        and filled.shape[:2] == buffer.shape[:2]
        and buffer.is_inference() <= torch.is_inference_mode_enabled()
    )


def begin_buffering(cache: Any) -> None:
    """Make a dynamic cache grow in place; layers of other kinds are not changed."""
    cache = getattr(cache, "self_attention_cache", cache)
    if getattr(cache, "offloading", False):
        return
    for layer in getattr(cache, "layers", ()):
        if type(layer) is DynamicLayer:
            layer.__class__ = BufferedLayer  # in place, because the caller may hold references to the layers
    if getattr(cache, "layer_class_to_replicate", None) is DynamicLayer:
        cache.layer_class_to_replicate = BufferedLayer


def end_buffering(cache: Any) -> None:
    """Undo `begin_buffering`, and release spare slots."""
    cache = getattr(cache, "self_attention_cache", cache)
    for layer in getattr(cache, "layers", ()):
        if type(layer) is BufferedLayer:
            layer.__class__ = DynamicLayer
            layer.__dict__.pop("buffers", None)
            if layer.is_initialized and layer.keys is not None:
                layer.keys, layer.values = _without_spare(layer.keys), _without_spare(layer.values)
    if getattr(cache, "layer_class_to_replicate", None) is BufferedLayer:
        cache.layer_class_to_replicate = DynamicLayer


def _without_spare(filled: torch.Tensor) -> torch.Tensor:
    if filled.untyped_storage().nbytes() == filled.nbytes:
        return filled
    return filled.clone(memory_format=torch.contiguous_format)
