"""A draft model whose rows change between rounds, like the requests of a serving engine.

The batch is one cache, with rows padded on the left. A `RowCache` holds the keys and values of a row outside the batch.
A row with many tokens to read is fed alone and then merged, because in the batch all other rows would be padded to its
length.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from uag.drafting import Batch, DraftModel, check_draft
from uag.errors import UnsupportedError
from uag.hf import models
from uag.hf.cache.caches import dynamic_cache, self_attention_layers
from uag.projection import Feed, HasPath

_WIDE = 16
"""Rows with more tokens to read than this are fed alone. Increase for fewer passes; decrease for less padding."""


@dataclass(frozen=True)
class RowCache:
    """Keys and values of one row, without padding.

    Attributes:
        layers: keys and values of each layer, [num_heads, length, head_size] each; empty without tokens.
        length: number of tokens.
    """

    layers: list[tuple[torch.Tensor, torch.Tensor]]
    length: int


def merge_rows(rows: Sequence[RowCache], width: int) -> Any:
    """Return a new cache of rows that are left-padded to `width` slots: [rows, num_heads, width, head_size]."""
    merged = dynamic_cache()
    for number, template in enumerate(next((row.layers for row in rows if row.length), ())):
        parts = []
        for part in range(2):
            num_heads, _, head_size = template[part].shape
            new = template[part].new_zeros((len(rows), num_heads, width, head_size))
            for place, row in enumerate(rows):
                if row.length:
                    new[place, :, width - row.length :] = row.layers[number][part]
            parts.append(new)
        merged.update(parts[0][:, :, :0], parts[1][:, :, :0], number)
        merged.layers[number].keys, merged.layers[number].values = parts
    return merged


class OpenDraft(DraftModel):
    """A draft model for a batch whose rows change between rounds; see `DraftModel`.

    Raises:
        UnsupportedError: the model cannot draft, is an encoder-decoder, or keeps states.
    """

    def __init__(self, model: Any, num_ids: int | None = None) -> None:
        check_draft(model)
        super().__init__(model, num_ids)
        if self.is_encoder_decoder:
            raise UnsupportedError(
                f"The draft {self.name!r} is an encoder-decoder, which has no source text to read here. "
                "Use a decoder-only draft."
            )
        if models.state_layers(model):
            raise UnsupportedError(
                f"The draft {self.name!r} keeps states, which cannot be padded or merged when requests come and go. "
                "Use a draft with attention layers only."
            )
        self.start(())

    @torch.inference_mode()
    def save(self, held: int | RowCache, length: int) -> RowCache:
        """Copy the keys and values of the first `length` tokens of a row: its batch index, or its saved cache."""
        if isinstance(held, RowCache):
            return RowCache([(k[:, :length].clone(), v[:, :length].clone()) for k, v in held.layers], length)
        layers, slots = [], torch.tensor(self.batch.slots[held][:length], dtype=torch.long)
        for layer in self_attention_layers(self.batch.cache):
            index = slots.to(layer.keys.device)
            layers.append((layer.keys[held].index_select(1, index), layer.values[held].index_select(1, index)))
        return RowCache(layers, len(slots))

    @torch.inference_mode()
    def set_rows(self, entries: Sequence[tuple[HasPath, int | RowCache]]) -> None:
        """Replace the batch by these rows, each with its index in the current batch or its saved cache."""
        caches = [held if isinstance(held, RowCache) else self.save(held, len(row.path)) for row, held in entries]
        width = max((cache.length for cache in caches), default=0)
        self.batch = Batch(
            rows=[row for row, _ in entries],
            slots=[list(range(width - cache.length, width)) for cache in caches],
            num_slots=width,
            cache=merge_rows(caches, width),
        )

    def feed(self, requests: Sequence[tuple[int, Feed]]) -> None:
        """Run one pass for each row with many tokens to read, and one for all others; see `DraftModel.feed`."""
        batch = self.batch
        limit = _WIDE if len(batch.rows) > 1 else self.max_positions
        fed: dict[int, RowCache] = {}
        for index, request in requests:
            if len(request.nodes) > limit:  # a batch of its own
                row, kept = batch.rows[index], self.save(index, request.keep)
                self.set_rows([(row, kept)])
                super().feed([(0, request)])
                fed[index] = self.save(0, len(row.path))
                self.batch = batch
        if fed:
            self.set_rows([(row, fed.get(index, index)) for index, row in enumerate(batch.rows)])
        rest = [(index, request) for index, request in requests if index not in fed]
        if rest:
            super().feed(rest)
