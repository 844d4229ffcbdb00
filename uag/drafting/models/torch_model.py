"""Draft passes in PyTorch: rows of different lengths in one cache, exact rollback.

A state (Mamba, LFM2, Qwen3.5, Granite 4) sums over all tokens. So the rows of a model with states each have their own
cache and passes, and the states are copied before each pass.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch

from uag.drafting.drafter import Counts
from uag.drafting.models.base import KEPT_POSITIONS, Passes, split
from uag.drafting.models.graphed import StaticPasses
from uag.drafting.models.trials import takes_blocks
from uag.hf import models, passes, weights, wrapped
from uag.hf.cache import caches
from uag.hf.cache.book import Book
from uag.hf.inspection import in_evaluation, inspected_once, is_training
from uag.kernels import FEW_ROWS, OwnKernels
from uag.projection import Node


class TorchPasses(Passes):
    """Runs passes of a transformers model; with `is_static`, narrow ones are recorded or compiled (`StaticPasses`)."""

    def __init__(
        self, model: Any, num_ids: int | None = None, *, is_static: bool = False, is_compiled: bool = False
    ) -> None:
        counts = Counts(num_bytes=weights.num_bytes(model))
        size, max_positions = models.head_size(model), models.max_positions(model)
        super().__init__(model.__class__.__name__, counts, size, max_positions, num_ids)
        self.model = model
        self.is_encoder_decoder = bool(model.config.is_encoder_decoder)
        inputs = wrapped.inputs_of(model)
        self._cache_name = str(wrapped.cache_name(model))
        self._takes_positions = "position_ids" in inputs and not self.is_encoder_decoder
        self._takes_logits_to_keep = "logits_to_keep" in inputs
        self._num_embeddings = int(wrapped.weight_of(model.get_input_embeddings()).shape[0])
        self._without_gradients = weights.without_gradients(model)
        self._evaluating: Callable[[], AbstractContextManager[None]] = nullcontext
        self._kernels = OwnKernels()
        self._has_states = bool(models.state_layers(model))
        self._takes_blocks = not self._has_states or takes_blocks(model)
        self._static = StaticPasses(model, self._call_model, counts, is_compiled=is_compiled) if is_static else None
        self.books: list[Book] = []  # one for all rows, or with states one for each
        self._encoder_ids: Sequence[Sequence[int]] = ()
        self._encoder: dict[str, Any] = {}

    def _begin(self, encoder_ids: Sequence[Sequence[int]]) -> None:
        self.device = wrapped.device_of(self.model)  # it may have been moved since the last call
        self._encoder_ids, self._encoder = encoder_ids, {}
        self._evaluating = partial(in_evaluation, self.model) if is_training(self.model) else nullcontext
        is_static = self._static is not None and self._static.begin(self.device, len(self.rows))
        if is_static:
            self.books = [Book(lambda: None, len(self.rows))]  # each pass sets its cache
        elif self._has_states:
            new_cache = partial(caches.cache_with_states, self.model)
            self.books = [Book(new_cache, has_states=True) for _ in self.rows]
        else:
            new_cache = partial(caches.dynamic_cache, is_encoder_decoder=self.is_encoder_decoder)
            self.books = [Book(new_cache, len(self.rows))]
        with inspected_once(self.model):
            self._kernels = OwnKernels() if is_static else OwnKernels(self.model)

    def _free(self, *, has_failed: bool) -> None:
        if self._static is not None and (has_failed or any(book.is_spoiled for book in self.books)):
            self._static.cache = None  # another call's mask would not hide a NaN
        self.books, self._encoder = [], {}
        weights.drop_inference_tensors(self.model)

    def _cut(self, row: int, length: int) -> int:
        return self.books[row].cut(0, length) if self._has_states else self.books[0].cut(row, length)

    def _run(self, nodes: Mapping[int, list[Node]]) -> None:
        if not self._has_states:
            self.run(self.books[0], nodes)
            return
        for row, of_row in nodes.items():
            for part in self._parts(of_row):
                self.run(self.books[row], {0: part})

    def _parts(self, nodes: list[Node]) -> list[list[Node]]:
        """Split a row's pass, so that states are copied where the search may return to."""
        if self._takes_blocks:
            return split(nodes)
        # The model takes a block only if no state precedes it.
        first = 0 if nodes[0].depth else max(1, len(nodes) - KEPT_POSITIONS)
        return [part for part in (nodes[:first], *([node] for node in nodes[first:])) if part]

    def run(self, book: Book, nodes: Mapping[int, list[Node]]) -> None:
        """Run one pass over a book: append tokens, one or more by row, and set the distributions of the last ones."""
        counts = {row: len(of_row) for row, of_row in nodes.items()}
        width = max(counts.values())
        kept = min(width, KEPT_POSITIONS)
        # Ids and positions; rows end in the last column. Padding repeats an id of the row: others may overflow.
        inputs = np.zeros((2, len(book.slots), width), dtype=np.int64)
        for row, of_row in nodes.items():
            ids = [node.draft_id for node in of_row]
            inputs[0, row] = ids[:1] * (width - len(ids)) + ids
            inputs[1, row, width - len(ids) :] = [node.depth for node in of_row]
        inputs[0][inputs[0] >= self._num_embeddings] = 0  # some heads are larger
        kernels = self._kernels
        with (
            self._without_gradients(),
            self._evaluating(),
            kernels.in_place(),
            kernels.running(FEW_ROWS),
            kernels.reading(),
        ):
            book.tidy()
            book.save()
            if book.is_spoiled:
                book.wipe()
            book.append(counts)
            if self._static is not None and self._static.kind:
                logits = self._static.run_book(book, inputs, kept)[:, -kept:]
            else:
                ids, positions = torch.from_numpy(inputs).to(self.device)
                mask = torch.from_numpy(book.mask()).to(self.device) if len(book.slots) > 1 else None
                logits = self._call_model(ids, positions, mask, kept, book.cache)[:, -kept:]
        places = [
            (node, (row + 1) * kept - back)  # in the flattened logits
            for row, of_row in nodes.items()
            for back, node in enumerate(reversed(of_row[-kept:]), start=1)
        ]
        book.is_spoiled = self._set_distributions(logits.flatten(0, 1), places)

    def _call_model(self, ids: torch.Tensor, positions: torch.Tensor, mask: Any, kept: int, cache: Any) -> torch.Tensor:
        if self.is_encoder_decoder and not self._encoder:
            self._encoder = self._encoded()
        prefix = "decoder_" if self.is_encoder_decoder else ""
        inputs = {**self._encoder, f"{prefix}input_ids": ids}
        if self._takes_positions:
            inputs["position_ids"] = positions
        if self._takes_logits_to_keep:
            inputs["logits_to_keep"] = kept
        if mask is not None:
            inputs[f"{prefix}attention_mask"] = mask
        inputs[self._cache_name] = cache
        passes.drop_router_logits(self.model, inputs)
        logits: torch.Tensor = self.model(**inputs, use_cache=True, return_dict=True).logits
        return logits

    def _encoded(self) -> dict[str, Any]:
        width = max(1, *(len(ids) for ids in self._encoder_ids))
        ids, mask = torch.zeros((2, len(self._encoder_ids), width), dtype=torch.long)
        for row, source in enumerate(self._encoder_ids):
            ids[row, : len(source)] = torch.tensor(source, dtype=torch.long)
            mask[row, : max(1, len(source))] = 1
        ids, mask = ids.where(ids < self._num_embeddings, 0).to(self.device), mask.to(self.device)
        outputs = self.model.get_encoder()(input_ids=ids, attention_mask=mask, return_dict=True)
        return {"encoder_outputs": outputs, "attention_mask": mask}
