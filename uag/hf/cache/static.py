"""A key-value cache of fixed size, for compiled passes."""

from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin


class SlotLayer(CacheLayerMixin):
    """Keys and values in tensors of fixed size: each pass writes from slot `start` on, and attends to all slots.

    Args:
        start: [] int64, shared by all layers.
        capacity: number of slots.
    """

    is_sliding = False
    is_compileable = True

    def __init__(self, start: torch.Tensor, capacity: int) -> None:
        super().__init__()
        self.start = start
        self.capacity = capacity

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate the tensors [num_rows, num_heads, capacity, head_size] once shapes are known."""
        rows, heads, _, _ = key_states.shape
        self.keys = key_states.new_zeros((rows, heads, self.capacity, key_states.shape[3]))
        self.values = value_states.new_zeros((rows, heads, self.capacity, value_states.shape[3]))
        self.is_initialized = True

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        *args: Any,  # noqa: ARG002 - the signature of transformers
        **kwargs: Any,  # noqa: ARG002
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new keys and values, and return those of all slots."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        slots = self.start + torch.arange(key_states.shape[2], device=key_states.device)
        self.keys.index_copy_(2, slots, key_states)
        self.values.index_copy_(2, slots, value_states)
        return self.keys, self.values

    def grow(self, capacity: int) -> None:
        """Add slots at the end."""
        self.capacity, more = capacity, capacity - self.capacity
        if self.is_initialized:
            self.keys = torch.nn.functional.pad(self.keys, (0, 0, 0, more))
            self.values = torch.nn.functional.pad(self.values, (0, 0, 0, more))

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:  # noqa: ARG002 - the signature of transformers
        """Return the length of a mask and its offset."""
        return self.capacity, 0

    def get_seq_length(self) -> int:
        """Return 0; the mask selects the used slots."""
        return 0

    def get_max_length(self) -> int:
        """Return the number of slots."""
        return self.capacity

    get_max_cache_shape = get_max_length  # its name before transformers 5.20


class SlotCache:
    """A cache of `SlotLayer`s.

    Args:
        num_layers: the model's number of layers.
        device: the model's device.

    Attributes:
        cache: the cache for the model.
        start: [] int64, the slot that the next pass writes from.
    """

    def __init__(self, num_layers: int, device: torch.device) -> None:
        self.start = torch.zeros((), dtype=torch.long, device=device)
        self.layers = [SlotLayer(self.start, 0) for _ in range(num_layers)]
        self.cache = Cache(layers=self.layers)

    @property
    def is_made(self) -> bool:
        """Whether the tensors are allocated, which happens in the first pass."""
        return all(layer.is_initialized for layer in self.layers)

    def reserve(self, num_slots: int, smallest: int) -> int:
        """Grow to at least `num_slots` and return the capacity, `smallest` times a power of two."""
        capacity = max(self.layers[0].capacity, smallest)
        while capacity < num_slots:
            capacity *= 2
        for layer in self.layers:
            if capacity > layer.capacity:
                layer.grow(capacity)
        return capacity

    def clear(self) -> None:
        """Drop the tensors."""
        for layer in self.layers:
            layer.keys = layer.values = None  # type: ignore[assignment] # as before the first pass
            layer.is_initialized = False
            layer.capacity = 0
