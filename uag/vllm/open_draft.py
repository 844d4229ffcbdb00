"""A draft model whose rows change between rounds, like the requests of a serving engine.

The batch is one cache, with rows padded on the left. A `RowCache` holds the keys and values of a row outside the batch.
A row with many tokens to read is fed alone and then merged, because in the batch all other rows would be padded to its
length.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch

from uag.drafting import Batch, DraftModel
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


def merge_rows(cache: Any, sources: Sequence[tuple[int, Sequence[int]] | RowCache], width: int) -> Any:
    """Return a new cache of rows that are left-padded to `width` slots.

    Each source is a row's index and slots in `cache`, or a saved row. Keys and values are [rows, heads, slots, size].
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


class OpenDraft(DraftModel):
    """A draft model for a batch whose rows change between rounds; see `DraftModel`.

    Raises:
        UnsupportedError: the model cannot draft, is an encoder-decoder, or keeps states.
    """

    def __init__(self, model: Any, num_ids: int | None = None) -> None:
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
            return held.cut(length)
        return RowCache.of(self.batch.cache, held, self.batch.slots[held][:length])

    @torch.inference_mode()
    def set_rows(self, entries: Sequence[tuple[HasPath, int | RowCache]]) -> None:
        """Replace the batch by these rows, each with its index in the current batch or its saved cache."""
        old = self.batch.slots
        sources = [held if isinstance(held, RowCache) else (held, old[held][: len(row.path)]) for row, held in entries]
        lengths = [source.length if isinstance(source, RowCache) else len(source[1]) for source in sources]
        num_slots = max(lengths, default=0)
        self.batch = Batch(
            rows=[row for row, _ in entries],
            nodes=[row.path[:length] for (row, _), length in zip(entries, lengths, strict=True)],
            slots=[list(range(num_slots - length, num_slots)) for length in lengths],
            num_slots=num_slots,
            cache=merge_rows(self.batch.cache, sources, num_slots),
        )

    def feed(self, requests: Sequence[tuple[int, Feed]]) -> None:
        """Run one pass for each row with many tokens to read, and one for all others; see `DraftModel.feed`."""
        batch = self.batch
        limit = _WIDE if len(batch.rows) > 1 else self.max_positions
        fed: dict[int, RowCache] = {}
        for index, request in requests:
            if len(request.nodes) > limit:  # a batch of its own
                row, kept = batch.rows[index], self.save(index, request.keep)
                del row.path[request.keep :]
                self.set_rows([(row, kept)])
                super().feed([(0, request)])
                fed[index] = self.save(0, len(row.path))
                self.batch = batch
        if fed:
            self.set_rows([(row, fed.get(index, index)) for index, row in enumerate(batch.rows)])
        rest = [(index, request) for index, request in requests if index not in fed]
        if rest:
            super().feed(rest)
