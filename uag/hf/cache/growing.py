"""A key-value cache that grows in place, for drafts.

transformers' dynamic cache copies all keys and values at every pass. At 1,500 tokens, this takes a fifth of a pass of a
draft of 135M parameters, but a fiftieth of a target's of 0.5B. Here each layer writes new tokens to spare slots.
"""

from typing import Any

import torch
from transformers.cache_utils import DynamicLayer

_MIN_SPARE, _SPARE_DIVISOR = 64, 8  # spare slots: 64 plus an eighth of the filled ones
_SMALL = 1 << 15  # elements below which copying is cheaper than appending in place (128 KB in float32, on a CPU)


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


def _append(buffer: torch.Tensor | None, filled: torch.Tensor, new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tensor that holds all slots, and a view of its filled part with `new` at the end."""
    num_filled, num_new = filled.shape[2], new.shape[2]
    size = num_filled + num_new
    if buffer is not None and _lies_in(filled, buffer):
        start = filled.storage_offset() // filled.stride(2)
        if start + size <= buffer.shape[2]:
            buffer.narrow(2, start + num_filled, num_new).copy_(new)
            return buffer, buffer.narrow(2, start, size)
    buffer = filled.new_empty((*new.shape[:2], size + _MIN_SPARE + size // _SPARE_DIVISOR, new.shape[3]))
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
