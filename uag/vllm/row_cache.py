"""Saves rows of a cache and merges them into a new one: requests of a server come and go.

Keys and values are [rows, heads, slots, head_dim] everywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch

from uag.hf.cache.caches import dynamic_cache, self_attention_layers


@dataclass(frozen=True)
class RowCache:
    """Keys and values of one row, without padding.

    Attributes:
        layers: keys and values of each layer: [num_heads, length, head_size] each.
        length: number of tokens.
    """

    layers: list[tuple[torch.Tensor, torch.Tensor]]
    length: int

    @classmethod
    def of(cls, cache: Any, row: int, slots: Sequence[int]) -> Self:
        """Copy the given slots of a row."""
        index = torch.tensor(slots, dtype=torch.long)
        layers = []
        for layer in self_attention_layers(cache):
            chosen = index.to(layer.keys.device)
            layers.append((layer.keys[row].index_select(1, chosen), layer.values[row].index_select(1, chosen)))
        return cls(layers, len(slots))

    def cut(self, length: int) -> Self:
        """Return a copy of the first `length` tokens."""
        return type(self)([(k[:, :length].clone(), v[:, :length].clone()) for k, v in self.layers], length)


def merge_rows(cache: Any, sources: Sequence[tuple[int, Sequence[int]] | RowCache | None], width: int) -> Any:
    """Return a new cache of rows that are left-padded to `width` slots.

    Args:
        cache: the old cache.
        sources: for each new row, its index and slots in `cache`, or a saved row; None for an empty row.
        width: number of slots.
    """
    rows = torch.zeros(len(sources), dtype=torch.long)
    slots = torch.zeros((len(sources), width), dtype=torch.long)
    saved = {place: source for place, source in enumerate(sources) if isinstance(source, RowCache) and source.length}
    for place, source in enumerate(sources):
        if isinstance(source, tuple) and source[1]:
            rows[place] = source[0]
            slots[place, width - len(source[1]) :] = torch.tensor(source[1])
    current = [(layer.keys, layer.values) for layer in self_attention_layers(cache)]
    templates = [row.layers for row in saved.values()]
    merged = dynamic_cache()
    for number in range(max(map(len, [current, *templates])) if width else 0):
        parts = []
        for part in range(2):
            old = current[number][part] if current else None
            if old is not None and old.shape[0] and old.shape[2]:
                at = slots.to(old.device)[:, None, :, None].expand(-1, old.shape[1], -1, old.shape[3])
                new = old[rows.to(old.device)].gather(2, at)
            else:
                template = templates[0][number][part]
                new = template.new_zeros((len(sources), template.shape[0], width, template.shape[2]))
            for place, row in saved.items():
                new[place, :, width - row.length :] = row.layers[number][part]
            parts.append(new)
        merged.update(parts[0][:, :, :0], parts[1][:, :, :0], number)
        merged.layers[number].keys, merged.layers[number].values = parts
    return merged
