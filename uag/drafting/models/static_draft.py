"""A draft model with a static cache, so that its narrow passes can be compiled.

Keys and values are written into transformers' static cache, and a mask selects the slots that a token sees. Passes over
a few tokens (nearly all) are compiled with `torch.compile`, on a GPU into CUDA graphs. The first pass of each shape
takes seconds to compile. If that fails, passes run uncompiled, which the statistics report.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import DynamicLayer

from uag.drafting.models.passes import Batch
from uag.drafting.models.torch_draft import DraftModel, IdArray
from uag.errors import UnsupportedError
from uag.hf import models, passes
from uag.hf.cache import static
from uag.lookahead import clock
from uag.projection import Feed

_WITH_4D_MASKS = ("sdpa", "eager")
"""transformers' own attention implementations that accept a 4D mask."""

_WIDEST = 4
"""Tokens per row of the widest compiled pass. Increase to compile wider passes, which are rare; decrease to spend less
time on compiling."""

_SMALLEST = 256
"""Initial number of cache slots, doubled as needed. Increase to compile for fewer sizes; decrease to attend to fewer
empty slots."""


class CompiledDraft(DraftModel):
    """A `DraftModel` whose narrow passes are compiled; it needs full attention in every layer.

    The cache is kept between calls, because CUDA graphs refer to its tensors.

    Raises:
        UnsupportedError: the model cannot draft, or cannot use a static cache.
    """

    advice_on_a_gpu = ""  # it is followed already

    def __init__(self, model: Any, num_ids: int | None = None) -> None:
        super().__init__(model, num_ids)
        reason = self._why_not()
        if reason:
            raise UnsupportedError(f"compile_draft=True does not work with the draft {self.name!r}: {reason}.")
        self._kind: tuple[Any, ...] = ()  # of the cache: rows, device and dtypes
        self._compiled: Callable[..., torch.Tensor] | None = None

    def _why_not(self) -> str:
        attention = models.attention_of(self.model)
        if self.is_encoder_decoder:
            return "it is an encoder-decoder"
        if not self._takes_positions:
            return "its forward has no position_ids"
        if not models.can_compile(self.model):
            return "transformers does not support compiling its class"
        if attention not in _WITH_4D_MASKS:
            return f"its attention {attention!r} does not support 4D masks; load it with 'sdpa'"
        unusual = models.layers_other_than((DynamicLayer,), self.model)
        return f"its cache has layers of kind {unusual}" if unusual else ""

    def _prepare(self) -> None:
        """Reuse the cache of a call of the same kind. Products are not replaced, since compiled code has its own."""
        autocast = torch.is_autocast_enabled(self.device.type) and torch.get_autocast_dtype(self.device.type)
        kind = self.device, len(self.batch.rows), self.model.dtype, autocast
        if kind[:1] != self._kind[:1]:
            mode = "reduce-overhead" if self.device.type == "cuda" else None
            self._compiled = torch.compile(self._call_static, mode=mode)
        if kind != self._kind:
            self._kind = kind
            self._drop_cache()

    def release(self) -> None:
        """Drop all sequences; the cache is kept for the next call with as many rows."""
        self.batch = Batch(cache=self.batch.cache)

    def _trim(self) -> None:
        """Reuse the slots at the end that no row uses any more; their content is masked, then overwritten."""
        self.batch.num_slots = max((slots[-1] + 1 for slots in self.batch.slots if slots), default=0)

    def _take(self, index: torch.Tensor) -> None:
        static.move_slots(self.batch.cache, index)

    def _forward(self, requests: Sequence[tuple[int, Feed]], inputs: IdArray, kept: int) -> torch.Tensor:
        """Run one pass, padded to a compiled width; see `DraftModel._forward`."""
        width = inputs.shape[-1]
        padded = passes.padded(width) if width <= _WIDEST else width
        with torch.inference_mode(mode=False), torch.no_grad():  # passes cannot write to tensors of inference mode
            num_slots = self._reserve(self.batch.num_slots + padded)
            # Padding comes after the pass's tokens: no token sees it, and the next pass overwrites it.
            ids, positions = np.pad(inputs, ((0, 0), (0, 0), (0, padded - width)), mode="edge")
            in_use = self._slots_in_use(requests, width)[:, None].astype(np.bool_)
            end = in_use.shape[-1]
            visible = np.zeros((len(in_use), 1, padded, num_slots), dtype=np.bool_)  # which slots each token sees
            visible[:, 0, :width, :end] = in_use & np.tri(width, end, self.batch.num_slots, dtype=np.bool_)
            static.set_length(self.batch.cache, self.batch.num_slots)
            arrays = {"ids": ids, "positions": positions, "visible": visible}
            tensors = {name: torch.from_numpy(array).to(self.device) for name, array in arrays.items()}
            call = tensors | {"cache": self.batch.cache}
            return self._call_static(**call, kept=kept) if width > _WIDEST else self._run_padded(call)[:, :width]

    def _reserve(self, needed: int) -> int:
        """Create or grow the cache to at least `needed` slots, and return its number of slots."""
        cache = self.batch.cache
        before = 0 if cache is None else static.capacity(cache)
        num_slots = max(before, _SMALLEST)
        while num_slots < needed:
            num_slots *= 2
        if num_slots > before:
            self.batch.cache = static.static_cache(self.model, num_slots, cache)
        return num_slots

    def _run_padded(self, inputs: dict[str, Any]) -> torch.Tensor:
        if self._compiled is None or not self.batch.cache.is_initialized:
            return self._call_static(**inputs)
        began = clock.now()
        try:
            logits, has_compiled = passes.run(self._compiled, inputs, has_own_graph=True)
        # No compiler, an unsupported model, or a thread other than the one that recorded the CUDA graphs.
        except (AssertionError, RuntimeError) as error:
            self._compiled = None
            cause = " ".join(str(error).split()[:24]) or type(error).__name__
            self.counts.fall_backs.append(f"the draft's passes are not compiled: {cause}")
            static.set_length(self.batch.cache, self.batch.num_slots)  # the failed pass may have advanced it
            return self._call_static(**inputs)
        if has_compiled:
            self.counts.compile_s += clock.now() - began
        return logits

    def _call_static(
        self, ids: torch.Tensor, positions: torch.Tensor, visible: torch.Tensor, cache: Any, kept: int = 0
    ) -> torch.Tensor:
        """Run the model, and return the last `kept` logits of each row; 0 for all."""
        mask = torch.zeros(visible.shape, dtype=self.model.dtype, device=visible.device)  # added to attention scores
        mask = mask.masked_fill_(~visible, torch.finfo(mask.dtype).min)
        return self._call_model(ids, positions, mask, kept, cache)
