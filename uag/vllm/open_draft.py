"""A draft model whose rows come and go, as the requests of a serving engine do.

The batch is one cache, its rows padded on the left. A row that leaves takes its keys and values along (`RowCache`) and
brings them back when it returns, or lends the beginning of them to a row that starts with the same tokens. A row with
much to read is fed alone and merged: in the batch, every other row would be padded to its length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from uag.drafting.model import DraftModel
from uag.errors import UnsupportedError
from uag.hf.caches import dynamic_cache
from uag.projection.tree import Feed, HasPath

_WIDE = 16
"""A row that is fed more tokens than this at once is fed alone."""


@dataclass(frozen=True)
class RowCache:
    """Keys and values of one row, without padding.

    Attributes:
        layers: by index of the layer, its keys and values: [num_heads, length, head_size] each.
        length: draft tokens.
    """

    layers: dict[int, tuple[torch.Tensor, torch.Tensor]]
    length: int

    def cut(self, length: int) -> RowCache:
        """Return a copy of the first `length` tokens."""
        layers = {i: (k[:, :length].clone(), v[:, :length].clone()) for i, (k, v) in self.layers.items()}
        return RowCache(layers, length)


class OpenDraft(DraftModel):
    """A draft model for a batch whose rows change between rounds.

    Args:
        model: a causal LM.
        num_ids: as in `DraftModel`.

    Raises:
        UnsupportedError: the model cannot draft, or is an encoder-decoder.
    """

    def __init__(self, model: Any, num_ids: int | None = None) -> None:
        super().__init__(model, num_ids)
        if self.is_encoder_decoder:
            raise UnsupportedError(
                f"The draft {self.name!r} is an encoder-decoder, which has no source text to read here. "
                "Use a decoder-only draft."
            )
        self.start(())

    @torch.inference_mode()
    def save(self, index: int, length: int) -> RowCache:
        """Copy the keys and values of the first `length` tokens of a row."""
        columns = torch.tensor(self._columns[index][:length], dtype=torch.long)
        layers = {}
        for number, layer in self._numbered_layers():
            at = columns.to(layer.keys.device)
            layers[number] = (layer.keys[index].index_select(1, at), layer.values[index].index_select(1, at))
        return RowCache(layers, length)

    @torch.inference_mode()
    def set_rows(self, entries: Sequence[tuple[HasPath, int | RowCache | None]]) -> None:
        """Make a batch of these rows, in this order; a row's path must be what its cache holds.

        Args:
            entries: each row with its place in the batch so far, or what was saved of it, or None for a new row.
        """
        old = self._columns
        columns = [old[source][: len(row.path)] if isinstance(source, int) else [] for row, source in entries]
        saved = {place: source for place, (_, source) in enumerate(entries) if isinstance(source, RowCache)}
        lengths = [saved[place].length if place in saved else len(columns[place]) for place in range(len(entries))]
        longest = max(lengths, default=0)
        self._cache = self._rebuilt([s if isinstance(s, int) else None for _, s in entries], columns, saved, longest)
        self.rows = [row for row, _ in entries]
        self._columns = [list(range(longest - length, longest)) for length in lengths]
        self._length = longest

    def feed(self, requests: Sequence[tuple[int, Feed]]) -> None:
        """Run one pass over several rows, those with much to read alone; see `DraftModel.feed`."""
        limit = _WIDE if len(self.rows) > 1 else self.max_positions
        wide = [(index, request) for index, request in requests if len(request.nodes) > limit]
        if wide:
            self._feed_apart(wide)
        rest = [(index, request) for index, request in requests if len(request.nodes) <= limit]
        if rest:
            super().feed(rest)

    def _feed_apart(self, requests: Sequence[tuple[int, Feed]]) -> None:
        """Feed rows one by one, each as a batch of its own, and merge them."""
        rows, columns, length, cache = self.rows, self._columns, self._length, self._cache
        fed: dict[int, RowCache] = {}
        for index, request in requests:
            row = rows[index]
            kept = self.save(index, request.keep)
            del row.path[request.keep :]
            self.set_rows([(row, kept)])
            super().feed([(0, request)])
            fed[index] = self.save(0, len(row.path))
            self.rows, self._columns, self._length, self._cache = rows, columns, length, cache
        self.set_rows([(row, fed.get(index, index)) for index, row in enumerate(rows)])

    # ------------------------------------------------------------------ the cache

    def _numbered_layers(self) -> list[tuple[int, Any]]:
        return [(n, layer) for n, layer in enumerate(self._cache.layers) if layer.is_initialized]

    def _rebuilt(
        self,
        sources: Sequence[int | None],
        columns: Sequence[Sequence[int]],
        saved: dict[int, RowCache],
        longest: int,
    ) -> Any:
        """Return a cache of rows padded on the left to `longest`: from the batch so far, from what was saved, or new.

        Args:
            sources: each row's place in the batch so far, or None.
            columns: the slots of its tokens there.
            saved: keys and values by place in the new batch.
            longest: tokens of the longest row.
        """
        cache = dynamic_cache()
        if not longest:
            return cache
        place_of = torch.tensor([0 if source is None else source for source in sources], dtype=torch.long)
        slots = torch.zeros((len(sources), longest), dtype=torch.long)
        for place, used in enumerate(columns):
            if used:
                slots[place, longest - len(used) :] = torch.tensor(used)
        now = {number: (layer.keys, layer.values) for number, layer in self._numbered_layers()}
        numbers = now or {number: pair for row in saved.values() for number, pair in row.layers.items()}
        for number in sorted(numbers):
            moved = [
                self._moved(now[number][part] if now else None, place_of, slots, saved, number, part)
                for part in range(2)
            ]
            cache.update(moved[0][:, :, :0], moved[1][:, :, :0], number)
            cache.layers[number].keys, cache.layers[number].values = moved
        return cache

    @staticmethod
    def _moved(
        old: torch.Tensor | None,
        place_of: torch.Tensor,
        slots: torch.Tensor,
        saved: dict[int, RowCache],
        number: int,
        part: int,
    ) -> torch.Tensor:
        """Return one layer's keys or values [num_rows, num_heads, longest, head_size] in their new places."""
        num_rows, longest = slots.shape
        if old is not None and old.shape[0] and old.shape[2]:
            at = slots.to(old.device)[:, None, :, None].expand(-1, old.shape[1], -1, old.shape[3])
            new = old[place_of.to(old.device)].gather(2, at)
        else:
            like = next(row.layers[number][part] for row in saved.values() if number in row.layers)
            new = like.new_zeros((num_rows, like.shape[0], longest, like.shape[2]))
        for place, row in saved.items():
            if row.length:
                new[place, :, longest - row.length :] = row.layers[number][part]
        return new
