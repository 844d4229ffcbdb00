"""A key-value cache that grows in place.

transformers' dynamic cache copies all keys and values at every pass, since it appends by concatenation: at batch 8 and
1,500 tokens that is a third of a small model's pass. Here each layer holds room behind its last slot, new slots are
written there, and what attention reads is a view of the filled part. The numbers are the same; nothing else changes.
"""

from typing import Any

import torch
from transformers.cache_utils import DynamicLayer

_LEAST_ROOM = 64

_ROOM_SHARE = 8
"""Room is kept for 64 slots and an eighth of the filled ones, so all slots are copied once in that many."""

_SMALL = 1 << 17
"""So many numbers are copied in less time than it takes to find their place (half a megabyte in float32, on a CPU)."""


class BufferedLayer(DynamicLayer):
    """A `DynamicLayer` whose keys and values [rows, heads, slots, head_dim] are views of larger tensors.

    Whoever crops them, or puts others in their place, need not know: slots are appended in place where the views still
    lie in those tensors with room behind them, and into new ones otherwise.
    """

    keys: torch.Tensor
    values: torch.Tensor
    buffers: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append slots; returns all keys and values. What cannot be appended in place is left to `DynamicLayer`."""
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
        """Go on with the first `num_slots` slots of these tensors; the others are room."""
        self.buffers = keys, values
        self.keys, self.values = keys[:, :, :num_slots], values[:, :, :num_slots]


def _is_like(filled: torch.Tensor, new: torch.Tensor) -> bool:
    """Whether slots differ in nothing but their number; concatenation would convert, or refuse, the others."""
    return (
        type(new) is torch.Tensor
        and filled.dim() == new.dim() == 4
        and filled.dtype == new.dtype
        and filled.device == new.device
        and filled.shape[:2] == new.shape[:2]
        and filled.shape[3] == new.shape[3]
    )


def _append(buffer: torch.Tensor | None, filled: torch.Tensor, new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tensor that holds everything, and its filled part with `new` behind it."""
    num_filled, num_new = filled.shape[2], new.shape[2]
    size = num_filled + num_new
    if buffer is not None and _lies_in(filled, buffer):
        start = filled.storage_offset() // filled.stride(2)
        if start + size <= buffer.shape[2]:
            buffer.narrow(2, start + num_filled, num_new).copy_(new)
            return buffer, buffer.narrow(2, start, size)
    buffer = new.new_empty((*new.shape[:2], size + _LEAST_ROOM + size // _ROOM_SHARE, new.shape[3]))
    buffer.narrow(2, 0, num_filled).copy_(filled)
    buffer.narrow(2, num_filled, num_new).copy_(new)
    return buffer, buffer.narrow(2, 0, size)


def _lies_in(filled: torch.Tensor, buffer: torch.Tensor) -> bool:
    """Whether `filled` is a run of the slots of `buffer`, which may be written to."""
    return (
        filled.stride() == buffer.stride()
        and filled.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr()
        and filled.shape[:2] == buffer.shape[:2]
        and buffer.is_inference() <= torch.is_inference_mode_enabled()
    )


def begin_buffering(cache: Any) -> None:
    """Let a dynamic cache grow in place, whatever it holds already; layers of other kinds stay as they are."""
    cache = getattr(cache, "self_attention_cache", cache)
    if getattr(cache, "offloading", False):
        return
    for layer in getattr(cache, "layers", ()):
        if type(layer) is DynamicLayer:
            layer.__class__ = BufferedLayer  # the layers stay the caller's own objects
    if getattr(cache, "layer_class_to_replicate", None) is DynamicLayer:
        cache.layer_class_to_replicate = BufferedLayer


def end_buffering(cache: Any) -> None:
    """Make a cache what it was before `begin_buffering`, with what it holds now; its tensors give up their room."""
    cache = getattr(cache, "self_attention_cache", cache)
    for layer in getattr(cache, "layers", ()):
        if type(layer) is BufferedLayer:
            layer.__class__ = DynamicLayer
            layer.__dict__.pop("buffers", None)
            if layer.is_initialized and layer.keys is not None:
                layer.keys, layer.values = _without_room(layer.keys), _without_room(layer.values)
    if getattr(cache, "layer_class_to_replicate", None) is BufferedLayer:
        cache.layer_class_to_replicate = DynamicLayer


def _without_room(filled: torch.Tensor) -> torch.Tensor:
    if filled.untyped_storage().nbytes() == filled.nbytes:
        return filled
    return filled.clone(memory_format=torch.contiguous_format)
