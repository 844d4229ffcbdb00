"""A draft model whose rows change between rounds, like the requests of a serving engine.

The batch is one cache, with rows padded on the left. A `RowCache` holds the keys and values of a row outside the batch.
A row with many tokens to read is fed alone and then merged, because in the batch all other rows would be padded to its
length.
"""

from collections.abc import Sequence
from typing import Any

import torch

from uag.drafting import Batch, DraftModel
from uag.errors import UnsupportedError
from uag.hf import models
from uag.projection import Feed, HasPath
from uag.vllm.row_cache import RowCache, merge_rows

_WIDE = 16
"""Rows with more tokens to read than this are fed alone. Increase for fewer passes; decrease for less padding."""


class OpenDraft(DraftModel):
    """A draft model for a batch whose rows change between rounds.

    Args:
        model: a causal LM.
        num_ids: as in `DraftModel`.

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
        """Replace the batch by these rows, in this order.

        Args:
            entries: each row, with its index in the current batch or its saved cache.
        """
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
