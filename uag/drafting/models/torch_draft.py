"""Draft passes in PyTorch: ragged rows in one cache, exact rollback.

Nothing stays changed in the model after a call, except tensors that were created in inference mode. Each assistant has
its own cache, so several assistants can share one draft model.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from uag.drafting.drafter import Counts
from uag.drafting.models.passes import KEPT_POSITIONS, Passes
from uag.hf import models, weights, wrapped
from uag.hf.cache import caches
from uag.hf.inspection import in_evaluation, inspected_once, is_training
from uag.products import FEW_ROWS, OwnKernels
from uag.projection import Feed, HasPath

IdArray = npt.NDArray[np.int64]


class DraftModel(Passes):
    """Runs draft passes of a transformers model; see `Passes`.

    Args:
        model: a causal LM, or an encoder-decoder whose encoder reads the re-tokenized source; `check_draft` accepts it.
        num_ids: see `Passes`.
    """

    def __init__(self, model: Any, num_ids: int | None = None) -> None:
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
        self._encoder_ids: Sequence[Sequence[int]] = ()
        self._encoder: dict[str, Any] = {}

    def start(self, rows: Sequence[HasPath], encoder_ids: Sequence[Sequence[int]] | None = None) -> None:
        """Drop all sequences and start with `rows`; see `Passes.start`."""
        super().start(rows)
        self.device = wrapped.device_of(self.model)  # it may have been moved since the last call
        self._encoder_ids, self._encoder = encoder_ids or [[]] * len(rows), {}
        self._evaluating = partial(in_evaluation, self.model) if is_training(self.model) else nullcontext
        self._prepare()

    def _prepare(self) -> None:
        """Create the cache, and look for layers again, since the model's modules may have changed."""
        self.batch.cache = caches.dynamic_cache(is_encoder_decoder=self.is_encoder_decoder)
        with inspected_once(self.model):
            self._kernels = OwnKernels(self.model)

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Use uag's kernels in a pass over few rows."""
        with self._kernels.in_place(), self._kernels.running(FEW_ROWS):
            yield

    def _drop_cache(self) -> None:
        self.batch.cache, self._encoder = None, {}
        weights.drop_inference_tensors(self.model)

    def compact(self) -> None:
        """Close the gaps that rejected tokens left, so that every row ends in the last slot."""
        batch = self.batch
        longest = max(map(len, batch.slots), default=0)
        if len(batch.rows) < 2 or longest in (0, batch.num_slots):
            return
        index = torch.zeros((len(batch.rows), longest), dtype=torch.long)
        for row, slots in enumerate(batch.slots):
            if slots:
                index[row, longest - len(slots) :] = torch.tensor(slots)
            batch.slots[row] = list(range(longest - len(slots), longest))
        with self._without_gradients():
            self._take(index)
        batch.num_slots = longest

    def _take(self, index: torch.Tensor) -> None:
        """Keep only each row's slots `index` [num_rows, num_kept], in this order."""
        caches.take_slots(caches.self_attention_layers(self.batch.cache), index)

    def _trim(self) -> None:
        """Remove the slots at the end that no row uses any more."""
        used = max((slots[-1] + 1 for slots in self.batch.slots if slots), default=0)
        if used != self.batch.num_slots:
            caches.cut_slots(self.batch.cache, 0, used)
        self.batch.num_slots = used

    def _wipe(self) -> None:
        """Zero the slots that no token uses: the mask gives them weight 0, but 0 times NaN is NaN."""
        is_unused = torch.from_numpy(self._slots_in_use((), 0) == 0)
        for layer in caches.self_attention_layers(self.batch.cache):
            num_more = layer.keys.shape[2] - is_unused.shape[1]
            places = torch.nn.functional.pad(is_unused, (0, num_more), value=True)[:, None, :, None].to(self.device)
            layer.keys.masked_fill_(places, 0)
            layer.values.masked_fill_(places, 0)

    def _run(self, requests: Sequence[tuple[int, Feed]]) -> None:
        batch = self.batch
        with self._without_gradients(), self._evaluating(), self._running():
            self._trim()
            if self.has_overflowed:
                self._wipe()
            width = max(len(request.nodes) for _, request in requests)
            kept = min(width, KEPT_POSITIONS)
            # Ids and positions; rows end in the last column. Padding repeats an id of the row: others may overflow.
            inputs = np.zeros((2, len(batch.rows), width), dtype=np.int64)
            of_rows = dict(requests)
            for row, progress in enumerate(batch.rows):
                nodes = of_rows[row].nodes if row in of_rows else progress.path
                inputs[0, row] = self._embedded([node.draft_id for node in nodes[:1]] or [0])
            for row, request in requests:
                first = width - len(request.nodes)
                inputs[0, row, first:] = self._embedded([node.draft_id for node in request.nodes])
                inputs[1, row, first:] = [node.depth for node in request.nodes]
            logits = self._forward(requests, inputs, kept)[:, -kept:]
        batch.num_slots += width
        places = []
        for row, request in requests:
            batch.slots[row].extend(range(batch.num_slots - len(request.nodes), batch.num_slots))
            end = (row + 1) * kept  # of the row in the flattened logits; shorter requests are right-aligned
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
            kept: number of last distributions that are needed; logits [num_rows, kept or width, vocab_size] return.
        """
        _, num_rows, width = inputs.shape
        ids, positions = torch.from_numpy(inputs).to(self.device)
        mask = torch.from_numpy(self._slots_in_use(requests, width)).to(self.device) if num_rows > 1 else None
        return self._call_model(ids, positions, mask, kept, self.batch.cache)

    def _slots_in_use(self, requests: Sequence[tuple[int, Feed]], width: int) -> IdArray:
        """Return 1 for each slot that holds a token of a row after a pass, else 0: [num_rows, num_slots + width]."""
        mask = np.zeros((len(self.batch.rows), self.batch.num_slots + width), dtype=np.int64)
        for row, slots in enumerate(self.batch.slots):
            # NumPy indexes with a list element by element.
            is_range = slots and slots[-1] - slots[0] == len(slots) - 1
            mask[row, slice(slots[0], slots[-1] + 1) if is_range else slots] = 1
        for row, request in requests:
            mask[row, mask.shape[1] - len(request.nodes) :] = 1
        return mask

    def _call_model(self, ids: torch.Tensor, positions: torch.Tensor, mask: Any, kept: int, cache: Any) -> torch.Tensor:
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
        inputs[self._cache_name] = cache
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
