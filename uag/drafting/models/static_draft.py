"""A draft model with a static cache, so that its narrow passes can be recorded as graphs, or compiled.

Keys and values are written into transformers' static cache, and a mask selects the slots that a token sees. Passes over
a few tokens (nearly all) are recorded on devices that have graphs (`Recorded`), without an option. With
`compile_draft=True`, they run through `torch.compile` instead, and the first pass of each shape takes seconds. If
either fails, passes run as they are, which the statistics report.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from uag.drafting.models.passes import Batch
from uag.drafting.models.torch_draft import DraftModel, IdArray
from uag.errors import UnsupportedError
from uag.hf import models, passes
from uag.hf.cache import recorded, static
from uag.hf.devices import graphs_of, synchronize
from uag.hf.inspection import inspected_once
from uag.lookahead import clock
from uag.products import OwnKernels
from uag.projection import Feed

_WITH_4D_MASKS = ("sdpa", "eager")
"""transformers' own attention implementations that accept a 4D mask."""

_WIDEST = 4
"""Tokens per row of the widest pass that is recorded or compiled. Increase to record wider passes, which are rare;
decrease to record or compile fewer graphs."""

_SMALLEST = 1024
"""Initial number of cache slots, doubled as needed. Increase to record graphs for fewer sizes; decrease to attend to
fewer empty slots and to use less memory (at 1024, 24 MB per row for a draft of 135 million weights in bfloat16)."""


class StaticDraft(DraftModel):
    """A `DraftModel` whose narrow passes are recorded on devices with graphs; elsewhere, it is a `DraftModel`.

    The cache is kept between calls, because graphs refer to its tensors.

    Args:
        model: see `DraftModel`; a static cache needs full attention in every layer.
        num_ids: see `Passes`.
        is_compiled: whether passes are compiled instead, on any device.

    Raises:
        UnsupportedError: the model cannot draft, or is to be compiled and cannot use a static cache.
    """

    def __init__(self, model: Any, num_ids: int | None = None, *, is_compiled: bool = False) -> None:
        super().__init__(model, num_ids)
        reason = self._static_refusal() if is_compiled else ""
        if reason:
            raise UnsupportedError(f"compile_draft=True does not work with the draft {self.name!r}: {reason}.")
        self._is_compiled = is_compiled
        self._kind: tuple[Any, ...] = ()  # what a static cache and its graphs are for; empty without one
        self._compiled: Callable[..., torch.Tensor] | None = None
        self._recorded: recorded.Recorded | None = None
        self._windows: dict[str, int | None] = {}
        self._failure = ""  # why passes are not recorded after all

    def _static_refusal(self) -> str:
        attention = models.attention_of(self.model)
        if self.is_encoder_decoder:
            return "it is an encoder-decoder"
        if not self._takes_positions:
            return "its forward has no position_ids"
        if not models.can_compile(self.model):
            return "transformers does not support static caches for its class"
        if attention not in _WITH_4D_MASKS:
            return f"its attention {attention!r} does not support 4D masks; load it with 'sdpa'"
        unusual = models.layers_other_than((DynamicLayer, DynamicSlidingWindowLayer), self.model)
        if unusual:
            return f"its cache has layers of kind {unusual}"
        return "" if models.windows(self.model) else "its forward takes no masks by layer"

    def _prepare(self) -> None:
        """Reuse the cache and the graphs of a call of the same kind; they contain PyTorch's own products."""
        kind: tuple[Any, ...] = ()
        self.counts.advice = ""
        if self._is_compiled:
            autocast = torch.is_autocast_enabled(self.device.type) and torch.get_autocast_dtype(self.device.type)
            kind = self.device, len(self.batch.rows), self.model.dtype, autocast
        elif graphs_of(self.device) is not None:
            with inspected_once(self.model):
                reason = self._static_refusal() or recorded.refusal(self.model, self.device)
                if reason:
                    self.counts.advice = f"the draft's passes are not recorded, because {reason} (docs/gpu.md)"
                else:
                    kind = self.device, len(self.batch.rows), *recorded.state_of(self.model)
        if not kind or kind != self._kind:
            if kind and self._is_compiled and kind[:1] != self._kind[:1]:
                mode = "reduce-overhead" if self.device.type == "cuda" else None
                self._compiled = torch.compile(self._call_static, mode=mode)
            if self._failure:
                self.counts.fall_backs.remove(self._failure)
            self._kind, self._failure, self._kernels = kind, "", OwnKernels()
            self._drop_cache()
            self._windows = models.windows(self.model) if kind else {}
            is_recorded = kind and not self._is_compiled
            self._recorded = recorded.Recorded(self._call_static, self.device) if is_recorded else None
        if not kind:
            super()._prepare()

    def release(self) -> None:
        """Drop all sequences; a static cache is kept for the next call with as many rows."""
        if self._kind:
            self.batch = Batch(cache=self.batch.cache)
        else:
            super().release()

    def _trim(self) -> None:
        """Reuse the slots at the end that no row uses any more; their content is masked, then overwritten."""
        if self._kind:
            self.batch.num_slots = max((slots[-1] + 1 for slots in self.batch.slots if slots), default=0)
        else:
            super()._trim()

    def _take(self, index: torch.Tensor) -> None:
        if self._kind:
            static.move_slots(self.batch.cache, index)
        else:
            super()._take(index)

    def _forward(self, requests: Sequence[tuple[int, Feed]], inputs: IdArray, kept: int) -> torch.Tensor:
        """Run one pass, padded to a width that is recorded or compiled; see `DraftModel._forward`."""
        if not self._kind:
            return super()._forward(requests, inputs, kept)
        width = padded = inputs.shape[-1]
        if width <= _WIDEST:  # the widest is recorded first, so that the others share its memory
            padded = _WIDEST if self._recorded is not None and self._recorded.is_new else passes.padded(width)
        with torch.inference_mode(mode=False), torch.no_grad():  # passes cannot write to tensors of inference mode
            num_slots = self._reserve(self.batch.num_slots + padded)
            # Padding comes after the pass's tokens: no token sees it, and the next pass overwrites it.
            tokens = np.pad(inputs, ((0, 0), (0, 0), (0, padded - width)), mode="edge")
            in_use = np.zeros((inputs.shape[1], num_slots), dtype=np.bool_)
            in_use[:, : self.batch.num_slots + width] = self._slots_in_use(requests, width)
            tensors = {"tokens": torch.from_numpy(tokens), "in_use": torch.from_numpy(in_use)}
            static.set_length(self.batch.cache, self.batch.num_slots)
            if width <= _WIDEST and self._recorded is not None:
                return self._run_recorded(self._recorded, tensors)[:, :width]
            call = {name: tensor.to(self.device) for name, tensor in tensors.items()} | {"cache": self.batch.cache}
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

    def _run_recorded(self, graphs: recorded.Recorded, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        began = clock.now()
        logits, is_special = graphs.run(tensors, self.batch.cache, self.batch.num_slots)
        if is_special:
            synchronize(self.device)
            self.counts.compile_s += clock.now() - began
        if graphs.failure and not self._failure:
            self._failure = f"the draft's passes are not recorded: {graphs.failure}"
            self.counts.fall_backs.append(self._failure)
        return logits

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

    def _call_static(self, tokens: torch.Tensor, in_use: torch.Tensor, cache: Any, kept: int = 0) -> torch.Tensor:
        """Run the model, and return the last `kept` logits of each row; 0 for all.

        Args:
            tokens: [2, num_rows, width], ids and positions.
            in_use: [num_rows, num_slots], which slots hold a token of the row after the pass.
            cache: set to the number of slots before the pass.
            kept: number of logits.
        """
        ids, positions = tokens
        slots, own = (torch.arange(size, device=ids.device) for size in (in_use.shape[-1], ids.shape[-1]))
        own = (cache.layers[0].cumulative_length.to(ids.device) + own)[:, None]
        masks = {}
        for layer_type, window in self._windows.items():
            visible = in_use[:, None, None] & (slots <= own)  # which slots each token sees
            if window is not None:
                # A slot's position is the number of slots in use before it.
                visible &= in_use.cumsum(-1)[:, None, None] - 1 > positions[:, None, :, None] - window
            mask = torch.zeros(visible.shape, dtype=self.model.dtype, device=ids.device)  # added to attention scores
            masks[layer_type] = mask.masked_fill_(~visible, torch.finfo(mask.dtype).min)
        return self._call_model(ids, positions, masks.get("", masks), kept, cache)
