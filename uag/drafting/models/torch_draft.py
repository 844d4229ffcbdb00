"""Draft passes in PyTorch: ragged rows in one cache, exact rollback.

The model's config, generation config, head and embeddings are never modified. Each assistant has its own plain cache
(every layer keeps all positions), so several assistants can share one draft model.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from uag.drafting.drafter import Counts
from uag.drafting.models.passes import KEPT_POSITIONS, Passes
from uag.hf import models, weights, wrapped
from uag.hf.cache import caches
from uag.hf.layers import inspected_once
from uag.hf.trials.drafts import check_draft
from uag.hf.trials.evaluation import in_evaluation, is_training
from uag.products import FastProducts
from uag.projection import Feed, HasPath

IdArray = npt.NDArray[np.int64]


class DraftModel(Passes):
    """Runs draft passes of a transformers model; see `Passes`.

    Args:
        model: a causal LM, or an encoder-decoder whose encoder reads the re-tokenized source.
        num_ids: size of its tokenizer, which the head's may exceed or, rarely, fall short of; None for the head's.

    Raises:
        UnsupportedError: the model has no LM head, or its cache cannot be rewound.
    """

    def __init__(self, model: Any, num_ids: int | None = None) -> None:
        check_draft(model)
        counts = Counts(num_bytes=weights.num_bytes(model))
        size, max_positions = models.head_size(model), models.max_positions(model)
        super().__init__(model.__class__.__name__, counts, size, max_positions, num_ids)
        self.model = model
        self.is_encoder_decoder = bool(model.config.is_encoder_decoder)
        self.device = wrapped.device_of(model)
        inputs = wrapped.inputs_of(model)
        self._cache_name = str(wrapped.cache_name(model))
        self._takes_positions = "position_ids" in inputs and not self.is_encoder_decoder
        self._takes_logits_to_keep = "logits_to_keep" in inputs
        self._num_embeddings = int(wrapped.weight_of(model.get_input_embeddings()).shape[0])
        self._without_gradients = weights.without_gradients(model)
        self._is_training = False
        self._products = FastProducts()
        self._cache: Any = None
        self._columns: list[list[int]] = []  # by row, the slots of its path
        self._length = 0  # slots in use
        self._encoder_ids: Sequence[Sequence[int]] = ()
        self._encoder: dict[str, Any] = {}

    def start(self, rows: Sequence[HasPath], encoder_ids: Sequence[Sequence[int]] | None = None) -> None:
        """Drop all sequences and start with `rows`; see `Passes.start`."""
        super().start(rows)
        self._columns, self._length = [[] for _ in rows], 0
        self._encoder_ids, self._encoder = encoder_ids or [[]] * len(rows), {}
        self._is_training = is_training(self.model)
        self._prepare()

    def _prepare(self) -> None:
        """Create the cache, and look for faster products again, since the model's modules may have changed."""
        self._cache = caches.dynamic_cache(is_encoder_decoder=self.is_encoder_decoder)
        with inspected_once(self.model):
            self._products = FastProducts(self.model)

    def release(self) -> None:
        """Drop all sequences and free the memory."""
        super().release()
        self._columns, self._length = [], 0
        self._drop_cache()

    def _drop_cache(self) -> None:
        """Free the cache and the encoder's output."""
        self._cache, self._encoder = None, {}

    def compact(self) -> None:
        """Close the gaps that rejected tokens left, so that every row ends in the last slot."""
        longest = max(map(len, self._columns), default=0)
        if len(self.rows) < 2 or longest in (0, self._length):
            return
        index = torch.zeros((len(self.rows), longest), dtype=torch.long)
        for row, columns in enumerate(self._columns):
            if columns:
                index[row, longest - len(columns) :] = torch.tensor(columns)
            self._columns[row] = list(range(longest - len(columns), longest))
        with self._without_gradients():
            self._take(index)
        self._length = longest

    def _take(self, index: torch.Tensor) -> None:
        """Keep only each row's slots `index` [num_rows, num_kept], in this order."""
        caches.take_slots(caches.self_attention_layers(self._cache), index)

    def _trim(self) -> None:
        """Remove the slots at the end that no row uses any more."""
        used = max((columns[-1] + 1 for columns in self._columns if columns), default=0)
        if used != self._length:
            caches.cut_slots(self._cache, 0, used)
        self._length = used

    # ------------------------------------------------------------------ passes

    def _run(self, requests: Sequence[tuple[int, Feed]]) -> None:
        for row, request in requests:
            del self._columns[row][request.keep :]
        with self._without_gradients(), self._evaluating(), self._products.in_place():
            self._trim()
            width = max(len(request.nodes) for _, request in requests)
            kept = min(width, KEPT_POSITIONS)
            inputs = np.zeros((2, len(self.rows), width), dtype=np.int64)  # ids, positions; rows end in the last column
            for row, request in requests:
                first = width - len(request.nodes)
                inputs[0, row, first:] = self._embedded([node.draft_id for node in request.nodes])
                inputs[1, row, first:] = [node.depth for node in request.nodes]
            logits = self._forward(requests, inputs, kept)[:, -kept:]
        self._length += width
        places = []
        for row, request in requests:
            self._columns[row].extend(range(self._length - len(request.nodes), self._length))
            end = (row + 1) * kept
            places += [(node, end - back) for back, node in enumerate(reversed(request.nodes[-kept:]), start=1)]
        self._set_distributions(logits.flatten(0, 1), places)

    def _embedded(self, draft_ids: Sequence[int]) -> list[int]:
        """Return ids with 0 in place of those without an embedding."""
        return [draft_id if draft_id < self._num_embeddings else 0 for draft_id in draft_ids]

    def _forward(self, requests: Sequence[tuple[int, Feed]], inputs: IdArray, kept: int) -> torch.Tensor:
        """Run one pass after the slots that are in use.

        Args:
            requests: as in `feed`.
            inputs: [2, num_rows, width], ids and positions.
            kept: number of last distributions that are needed.

        Returns:
            Logits [num_rows, kept or width, vocab_size].
        """
        _, num_rows, width = inputs.shape
        ids, positions = torch.from_numpy(inputs).to(self.device)
        mask = self._padding_mask(requests, self._length + width) if num_rows > 1 else None
        return self._call_model(ids, positions, mask, kept)

    def _padding_mask(self, requests: Sequence[tuple[int, Feed]], end: int) -> torch.Tensor:
        """Return a mask of the slots that hold each row's tokens, [num_rows, end]."""
        mask = np.zeros((len(self.rows), end), dtype=np.int64)
        for row, columns in enumerate(self._columns):
            mask[row, as_slice(columns)] = 1
        for row, request in requests:
            mask[row, end - len(request.nodes) :] = 1
        return torch.from_numpy(mask).to(self.device)

    def _call_model(
        self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None, kept: int
    ) -> torch.Tensor:
        """Run the model's own forward."""
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
        inputs[self._cache_name] = self._cache
        logits: torch.Tensor = self.model(**inputs, use_cache=True, return_dict=True).logits
        return logits

    def _encoded(self) -> dict[str, Any]:
        """Run the encoder on the rows' source texts."""
        width = max(1, *(len(ids) for ids in self._encoder_ids))
        ids, mask = torch.zeros((2, len(self._encoder_ids), width), dtype=torch.long)
        for row, source in enumerate(self._encoder_ids):
            ids[row, : len(source)] = torch.tensor(self._embedded(source), dtype=torch.long)
            mask[row, : max(1, len(source))] = 1
        ids, mask = ids.to(self.device), mask.to(self.device)
        outputs = self.model.get_encoder()(input_ids=ids, attention_mask=mask, return_dict=True)
        return {"encoder_outputs": outputs, "attention_mask": mask}

    def _evaluating(self) -> AbstractContextManager[None]:
        """Return a context that runs a draft in evaluation mode."""
        return in_evaluation(self.model) if self._is_training else nullcontext()


def as_slice(slots: Sequence[int]) -> slice | Sequence[int]:
    """Return consecutive slots as a slice, because NumPy indexes with a list element by element."""
    return slice(slots[0], slots[-1] + 1) if slots and slots[-1] - slots[0] == len(slots) - 1 else slots
