"""The draft model and its cache: ragged rows, exact rollback, one batched pass per request wave.

The model is never modified: no config, generation config, head or embedding is touched. The cache is our own and plain
(every layer keeps all positions), so any number of assistants can share one draft model.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from uag.drafting.drafter import Counts
from uag.drafting.models.can_draft import check_draft
from uag.drafting.models.pass_costs import PassCosts, usual_side
from uag.drafting.models.passes import completed
from uag.drafting.models.tree_masks import additive, seen
from uag.hf import models, weights, wrapped
from uag.hf.cache import caches
from uag.hf.evaluation import in_evaluation, is_training
from uag.hf.layers import inspected_once
from uag.hf.llama.forward import MOST_SHORT, Blocks
from uag.hf.trials.drafts import takes_trees
from uag.hf.trials.forward import blocks_of
from uag.products import FastProducts, clock
from uag.projection import Feed, HasPath, Node

_SIDE_MARGIN = 32
"""Slots kept free below a window for the tokens of a pass: fewer would let a wide one reach beyond it."""

IdArray = npt.NDArray[np.int64]

_KEPT_POSITIONS = 8
"""Distributions kept from a pass over many tokens: healing looks back a few, and each is as wide as the vocabulary."""


class DraftModel:
    """Runs draft passes for a set of rows.

    Args:
        model: a causal LM, or an encoder-decoder whose encoder reads the re-tokenized source.
        num_ids: entries of its tokenizer, which heads may exceed or, rarely, fall short of; None for the head's own.

    Raises:
        UnsupportedError: the model has no LM head, or its cache cannot be rewound.
    """

    def __init__(self, model: Any, num_ids: int | None = None) -> None:
        check_draft(model)
        self.model = model
        self.name: str = model.__class__.__name__
        self.is_encoder_decoder = bool(model.config.is_encoder_decoder)
        inputs = wrapped.inputs_of(model)
        self._takes_positions = "position_ids" in inputs and not self.is_encoder_decoder
        self._takes_logits_to_keep = "logits_to_keep" in inputs
        embeddings = weights.weight_of(model.get_input_embeddings())
        self.device = wrapped.device_of(model)
        self.vocab_size: int = models.head_size(model)
        self.max_positions: int = models.max_positions(model)
        self._num_ids = self.vocab_size if num_ids is None else num_ids
        self._num_embeddings = int(embeddings.shape[0])
        self.rows: Sequence[HasPath] = ()
        self._without_gradients = weights.without_gradients(model)
        self.counts = Counts(num_parameters=weights.num_weights(model), num_bytes=weights.num_bytes(model))
        self.needs_normalizer = False
        self.goes_by_time = True
        self._columns: list[list[int]] = []
        self._fed: list[list[Node]] = []  # the token in each of these columns
        self._length = 0
        self._cache: Any = None
        self._encoder: dict[str, Any] = {}
        self._is_training = False
        self._products = self._find_products()
        self._window: int | None = None
        self._takes_trees = self._takes_positions and takes_trees(model)
        self._blocks: Blocks | None = None if self.is_encoder_decoder else blocks_of(model)
        self._costs = PassCosts()
        self._is_cold = True

    def start(self, rows: Sequence[HasPath], encoder_ids: Sequence[Sequence[int]] | None = None) -> None:
        """Forget every sequence and begin with `rows`.

        Args:
            rows: the sequences; nothing is fed yet.
            encoder_ids: draft ids of each row's source text, for encoder-decoder drafts.
        """
        self.rows = rows
        self._columns, self._fed = [[] for _ in rows], [[] for _ in rows]
        self._length = 0
        self._cache = caches.encoder_decoder_cache() if self.is_encoder_decoder else caches.dynamic_cache()
        self._encoder = {}
        self._is_training = is_training(self.model)
        with inspected_once(self.model):
            self._blocks = None if self._is_training or self.is_encoder_decoder else blocks_of(self.model)
            self._products = self._find_products()
        if self.is_encoder_decoder:
            self._encode(encoder_ids or [[]] * len(rows))

    def release(self) -> None:
        """Drop the cache and the rows."""
        self.rows, self._columns, self._fed = (), [], []
        self._cache, self._encoder, self._length = None, {}, 0

    def max_side(self, num_rows: int) -> int:
        """Return how many tokens of other continuations a row may carry; none behind the shortest window of a layer."""
        if not self._takes_trees or not self._is_within_windows(_SIDE_MARGIN):
            return 0
        return self._costs.best_side(num_rows) if self.goes_by_time else usual_side(num_rows)

    def fits(self, feed: Feed) -> bool:
        """Say whether a pass stays within the model's positions."""
        return not feed.nodes or feed.nodes[-1].depth < self.max_positions

    def feed(self, requests: Sequence[tuple[int, Feed]]) -> None:
        """Run one pass over several rows.

        Each row's path is cut to `keep` tokens and grows by `nodes`, whose `probs` are set (for the last few), as are
        those of `side`.

        Args:
            requests: (row, request) pairs, one per row at most.
        """
        with self._without_gradients():
            self._feed(requests)

    def _feed(self, requests: Sequence[tuple[int, Feed]]) -> None:
        counts = self.counts
        began, compiled = clock(), counts.compile_s
        is_prompt = any(not request.keep for _, request in requests)
        requests = completed(requests, self.rows, self._fed)
        for row, request in requests:
            del self._columns[row][request.keep :]
            del self.rows[row].path[request.keep :]
        self._trim()
        requests = self._with_room(requests)
        width = max(len(request.nodes) + len(request.side) for _, request in requests)
        kept = max(min(len(request.nodes), _KEPT_POSITIONS) + len(request.side) for _, request in requests)
        places = np.zeros((2, len(self.rows), width), dtype=np.int64)  # ids and positions, rows end in the last column
        for row, request in requests:
            tokens = request.nodes + request.side
            # An id that the draft has no embedding for becomes its first.
            ids = [node.draft_id if node.draft_id < self._num_embeddings else 0 for node in tokens]
            places[:, row, width - len(tokens) :] = ids, [node.depth for node in tokens]
        with self._evaluating(), self._products.in_place():
            logits = self._forward(requests, places, kept)
        self._length += width
        logits = logits[:, -kept:, : self._num_ids].float()
        probs = torch.softmax(logits, dim=-1).cpu().numpy()
        if probs.shape[-1] < self._num_ids:
            probs = np.pad(probs, ((0, 0), (0, 0), (0, self._num_ids - probs.shape[-1])))
        normalizers = torch.logsumexp(logits, dim=-1).tolist() if self.needs_normalizer else None
        for row, request in requests:
            path, columns = self.rows[row].path, self._columns[row]
            tokens = request.nodes + request.side
            first = self._length - len(tokens)
            columns.extend(range(first, first + len(request.nodes)))
            path.extend(request.nodes)
            source = row if len(self.rows) > 1 else 0
            for back, node in enumerate(reversed(tokens[-kept:]), start=1):
                node.probs = probs[source, -back]
                if normalizers is not None:
                    node.log_normalizer = normalizers[source][-back]
        seconds = clock() - began - (counts.compile_s - compiled)
        counts.num_forwards += 1
        counts.forward_s += seconds
        if is_prompt:
            counts.prefill_s += seconds
        else:
            counts.num_tokens += sum(len(request.nodes) + len(request.side) for _, request in requests)
            if not self._is_cold:
                self._costs.learn(places[0].size, seconds)
        self._is_cold = False

    def compact(self) -> None:
        """Close the holes that rejected tokens left, so that every row ends in the last slot; done before a round."""
        self._is_cold = True  # the target's pass filled the processor's caches: this draft pass tells little of others
        if len(self.rows) < 2 or not self._length:
            return
        longest = max(len(columns) for columns in self._columns)
        if longest == self._length or not longest:
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
        """Let every row keep the slots `index` [num_rows, num_kept], in this order."""
        caches.take_slots(caches.self_attention_layers(self._cache), index)

    # ------------------------------------------------------------------ passes

    def _forward(self, requests: Sequence[tuple[int, Feed]], places: IdArray, kept: int) -> torch.Tensor:
        """Run one pass behind the slots that are used so far.

        Args:
            requests: as in `feed`.
            places: [2, num_rows, width], ids and positions.
            kept: how many distributions at the end are wanted.

        Returns:
            Logits [num_rows, kept or width, vocab_size].
        """
        _, num_rows, width = places.shape
        ids, positions = torch.from_numpy(places).to(self.device)
        is_tree = any(request.side for _, request in requests)
        blocks = self._blocks if self._length and width <= MOST_SHORT and self._is_within_windows(width) else None
        mask = None
        if is_tree or (blocks is not None and (num_rows > 1 or width > 1)):
            visible = seen(requests, self._columns, self._length, width, self._length + width)
            mask = additive(visible, self.model.dtype, self.device)
        elif num_rows > 1:
            mask = torch.zeros((num_rows, self._length + width), dtype=torch.long)
            for row, columns in enumerate(self._columns):
                mask[row, columns] = 1
            for row, request in requests:
                mask[row, self._length + width - len(request.nodes) :] = 1
            mask = mask.to(self.device)
        if blocks is not None:
            return blocks(ids, positions, int(places[1].max()), mask, self._cache, kept)
        return self._call(ids, mask, {"position_ids": positions} if self._takes_positions else {}, kept)

    def _with_room(self, requests: Sequence[tuple[int, Feed]]) -> Sequence[tuple[int, Feed]]:
        """Return requests without what they carry where that reaches beyond a window, or the model's positions."""
        deepest = max((node.depth for _, request in requests for node in request.side), default=-1)
        width = max(len(request.nodes) + len(request.side) for _, request in requests)
        if deepest < 0 or (deepest < self.max_positions and self._is_within_windows(width)):
            return requests
        return [(row, Feed(request.keep, request.nodes)) for row, request in requests]

    def _is_within_windows(self, width: int) -> bool:
        """Whether every layer of the model sees all slots in a pass of this width."""
        if self._window is None:
            self._window = caches.smallest_window(self.model)
        return self._length + width <= self._window

    def _call(self, ids: torch.Tensor, mask: torch.Tensor | None, inputs: dict[str, Any], kept: int) -> torch.Tensor:
        if self._takes_logits_to_keep:
            inputs["logits_to_keep"] = kept
        prefix = "decoder_" if self.is_encoder_decoder else ""
        inputs |= self._encoder | {f"{prefix}input_ids": ids}
        if mask is not None:
            inputs[f"{prefix}attention_mask"] = mask
        output = self.model(**inputs, past_key_values=self._cache, use_cache=True, return_dict=True)
        logits: torch.Tensor = output.logits
        return logits

    def _find_products(self) -> FastProducts:
        """Return the layers that may compute otherwise during passes; looked up at each start: hooks come and go."""
        return FastProducts(self.model)

    def _evaluating(self) -> AbstractContextManager[None]:
        """Run a draft that is in training mode as if it were not."""
        return in_evaluation(self.model) if self._is_training else nullcontext()

    def _encode(self, encoder_ids: Sequence[Sequence[int]]) -> None:
        width = max(1, *(len(ids) for ids in encoder_ids))
        ids = torch.zeros((len(encoder_ids), width), dtype=torch.long)
        mask = torch.zeros((len(encoder_ids), width), dtype=torch.long)
        for row, source in enumerate(encoder_ids):
            known = [i if i < self._num_embeddings else 0 for i in source]
            ids[row, : len(source)] = torch.tensor(known, dtype=torch.long)
            mask[row, : max(1, len(source))] = 1
        mask = mask.to(self.device)
        with self._without_gradients(), self._evaluating():
            outputs = self.model.get_encoder()(input_ids=ids.to(self.device), attention_mask=mask, return_dict=True)
        self._encoder = {"encoder_outputs": outputs, "attention_mask": mask}

    def _trim(self) -> None:
        """Cut the slots at the end that no row uses any more."""
        used = max((columns[-1] + 1 for columns in self._columns if columns), default=0)
        if used != self._length:
            caches.cut_slots(self._cache, 0, used)
        self._length = used
