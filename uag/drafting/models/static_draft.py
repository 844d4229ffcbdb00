"""A draft model with a cache of fixed size, so that its narrow passes can be compiled.

With a growing cache, every pass has new shapes that would have to be compiled. Here, keys and values are written into
fixed tensors, and a mask selects the slots that a token sees. Passes over a few tokens (nearly all) are compiled with
`torch.compile`; on a GPU, they are replayed as CUDA graphs, which avoids launching kernels one by one. Passes over more
tokens (the prompt) use the same cache uncompiled.

The first pass of each shape takes seconds to compile. If compilation fails, passes run uncompiled, which the statistics
report.
"""

import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from uag.drafting.models.passes import Passes
from uag.drafting.models.torch_draft import DraftModel, IdArray
from uag.drafting.models.tree_masks import visible_slots
from uag.errors import UnsupportedError
from uag.hf import masks, models
from uag.hf.cache import caches
from uag.hf.cache.static import SlotCache
from uag.projection import Feed

_WIDTHS = (1, 2, 4)
"""Widths that passes are padded to and compiled for. More widths reduce padding but take longer to compile."""

_SMALLEST = 256
"""Initial number of cache slots, doubled as needed. Increase to compile for fewer sizes; decrease to attend to fewer
empty slots."""

_Shape = tuple[int, int, int]


class CompiledDraft(DraftModel):
    """A `DraftModel` whose narrow passes are compiled.

    The cache is kept between calls, because compiled passes refer to it.

    Args:
        model: a causal LM with full attention in every layer.
        num_ids: as in `DraftModel`.

    Raises:
        UnsupportedError: the model cannot draft, or cannot use a cache of fixed size.
    """

    def __init__(self, model: Any, num_ids: int | None = None) -> None:
        super().__init__(model, num_ids)
        reason = self._why_not()
        if reason:
            raise UnsupportedError(f"compile_draft=True does not work with the draft {self.name!r}: {reason}.")
        self._slots = SlotCache(model.config.get_text_config(decoder=True).num_hidden_layers, self.device)
        self._num_rows = 0
        self._seen_shapes: set[_Shape] = set()
        # On a GPU, kernels are recorded once per shape and replayed as a CUDA graph.
        mode = "reduce-overhead" if self.device.type == "cuda" else None
        self._compiled: Callable[..., torch.Tensor] | None = torch.compile(self._call_static, mode=mode)

    def _why_not(self) -> str:
        attention = models.attention_of(self.model)
        if self.is_encoder_decoder:
            return "it is an encoder-decoder"
        if not self._takes_positions:
            return "its forward has no position_ids"
        if not models.can_compile(self.model):
            return "transformers does not support compiling its class"
        if attention not in masks.TAKING_MASKS:
            return f"its attention {attention!r} does not support 4D masks; load it with 'sdpa'"
        unusual = models.unusual_layers(self.model)
        return f"its cache has layers of kind {unusual}" if unusual else ""

    def _prepare(self) -> None:
        """Reuse the cache of a call with as many rows. Products are not replaced, since compiled code has its own."""
        if len(self.rows) != self._num_rows:
            self._num_rows = len(self.rows)
            self._slots.clear()

    def release(self) -> None:
        """Drop all sequences; the cache is kept for the next call with as many rows."""
        Passes.release(self)
        self._columns, self._length = [], 0

    def _drop_cache(self) -> None:
        """Free the cache."""
        self._slots.clear()

    def _trim(self) -> None:
        """Reuse the slots at the end that no row uses any more; their content is masked, then overwritten."""
        self._length = max((columns[-1] + 1 for columns in self._columns if columns), default=0)

    def _take(self, index: torch.Tensor) -> None:
        """Move slots within the cache's own tensors."""
        moved = [SimpleNamespace(keys=layer.keys, values=layer.values) for layer in self._slots.layers]
        caches.take_slots(moved, index)
        for layer, new in zip(self._slots.layers, moved, strict=True):
            layer.keys[:, :, : index.shape[1]] = new.keys
            layer.values[:, :, : index.shape[1]] = new.values

    # ------------------------------------------------------------------ passes

    def _forward(self, requests: Sequence[tuple[int, Feed]], inputs: IdArray, kept: int) -> torch.Tensor:  # noqa: ARG002
        """Run one pass, padded to a compiled width; see `DraftModel._forward`."""
        _, num_rows, width = inputs.shape
        padded = next((size for size in _WIDTHS if size >= width), width)
        with torch.inference_mode(mode=False):  # otherwise later passes could not write to the new tensors
            capacity = self._slots.reserve(self._length + padded, _SMALLEST)
        # Padding comes after the pass's tokens: no token sees it, and the next pass overwrites it.
        visible = np.zeros((num_rows, 1, padded, capacity), dtype=np.bool_)
        visible[:, :, :width] = visible_slots(requests, self._columns, self._length, width, capacity)
        ids, positions = np.pad(inputs, ((0, 0), (0, 0), (0, padded - width)))
        self._slots.start.fill_(self._length)
        with torch.inference_mode(mode=False), torch.no_grad():
            tensors = [torch.from_numpy(array).to(self.device) for array in (ids, positions, visible)]
            logits = self._run_shape((num_rows, padded, capacity), tensors)
        return logits[:, :width]

    def _run_shape(self, shape: _Shape, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        if self._compiled is None or shape[1] > _WIDTHS[-1] or not self._slots.is_made:
            return self._call_static(*tensors)
        began = time.perf_counter()
        try:
            logits = self._compiled(*tensors)
        except RuntimeError as error:  # no compiler, or an unsupported model
            self._compiled = None
            cause = " ".join(str(error).split()[:24]) or type(error).__name__
            self.counts.fall_backs.append(f"the draft's passes are not compiled: {cause}")
            return self._call_static(*tensors)
        if shape not in self._seen_shapes:
            self._seen_shapes.add(shape)
            self.counts.compile_s += time.perf_counter() - began
        return logits

    def _call_static(self, ids: torch.Tensor, positions: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=masks.additive(visible, self.model.dtype),
            past_key_values=self._slots.cache,
            use_cache=True,
            return_dict=True,
        ).logits
        return logits
