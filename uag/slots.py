"""Moving the slots of a key-value cache, row by row."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def take_slots(layers: Iterable[Any], index: torch.Tensor) -> None:
    """Let each row of each layer's cache keep the given slots, in the given order.

    Args:
        layers: cache layers with `keys` and `values` [rows, heads, slots, head_dim].
        index: [rows, num_kept] int64, the slot that each kept slot comes from.

    Whole slots are copied at once; `gather` would index every number by itself.
    """
    places: dict[tuple[Any, ...], torch.Tensor] = {}

    def taken(cached: torch.Tensor) -> torch.Tensor:
        rows, heads, size, width = cached.shape
        key = (heads, size, cached.device)
        if key not in places:
            starts = torch.arange(0, rows * heads * size, size, device=cached.device).view(rows, heads, 1)
            places[key] = (starts + index.to(cached.device)[:, None]).flatten()
        return cached.reshape(-1, width).index_select(0, places[key]).view(rows, heads, -1, width)

    for layer in layers:
        layer.keys, layer.values = taken(layer.keys), taken(layer.values)
