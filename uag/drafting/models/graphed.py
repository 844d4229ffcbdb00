"""A draft's passes over a static cache, so that the narrow ones can be recorded as graphs, or compiled.

Keys and values are written into transformers' static cache, and a mask selects the slots that a token sees. Passes over
a few tokens (nearly all) are recorded on devices that have graphs (`Recorded`), without an option. With
`compile_draft=True`, they run through `torch.compile` instead, and the first pass of each shape takes seconds. If
either fails, passes run as they are, which the statistics report.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from uag.drafting.drafter import Counts
from uag.errors import UnsupportedError
from uag.hf import models, passes, wrapped
from uag.hf.cache import recorded, static
from uag.hf.cache.book import Book
from uag.hf.devices import graphs_of, synchronize
from uag.hf.inspection import inspected_once
from uag.lookahead import clock

_WITH_4D_MASKS = ("sdpa", "eager")
"""transformers' own attention implementations that accept a 4D mask."""

_WIDEST = 4
"""Tokens per row of the widest pass that is recorded or compiled. Increase to record wider passes, which are rare;
decrease to record or compile fewer graphs."""

_SMALLEST = 1024
"""Initial number of cache slots, doubled as needed. Increase to record graphs for fewer sizes; decrease to attend to
fewer empty slots and to use less memory (at 1024, 24 MB per row for a draft of 135 million weights in bfloat16)."""


class StaticPasses:
    """Runs passes over a static cache, which is kept between calls, because graphs refer to its tensors.

    Args:
        model: a causal LM with full attention in every layer.
        call_model: runs the model's forward with ids, positions, a mask, a number of last logits and a cache.
        counts: where passes that fail are reported.
        is_compiled: whether passes are compiled, on any device, instead of recorded on devices with graphs.

    Attributes:
        kind: what the cache and its graphs are for; empty if a call's passes do not run here.
        cache: the cache; None before the first pass.

    Raises:
        UnsupportedError: the model is to be compiled and cannot use a static cache.
    """

    def __init__(
        self, model: Any, call_model: Callable[..., torch.Tensor], counts: Counts, *, is_compiled: bool
    ) -> None:
        self.kind: tuple[Any, ...] = ()
        self.cache: Any = None
        self._model, self._call_model, self._counts = model, call_model, counts
        self._is_compiled = is_compiled
        self._windows: dict[str, int | None] = {}
        self._graphs: recorded.Recorded | _Compiled | None = None
        self._failure = ""  # why passes are not recorded or compiled after all
        if is_compiled and (reason := self._refusal()):
            name = type(model).__name__
            raise UnsupportedError(f"compile_draft=True does not work with the draft {name!r}: {reason}.")

    def _refusal(self) -> str:
        attention = models.attention_of(self._model)
        if self._model.config.is_encoder_decoder:
            return "it is an encoder-decoder"
        if "position_ids" not in wrapped.inputs_of(self._model):
            return "its forward has no position_ids"
        if not models.can_compile(self._model):
            return "transformers does not support static caches for its class"
        if attention not in _WITH_4D_MASKS:
            return f"its attention {attention!r} does not support 4D masks; load it with 'sdpa'"
        unusual = models.layers_other_than((DynamicLayer, DynamicSlidingWindowLayer), self._model)
        if unusual:
            return f"its cache has layers of kind {unusual}"
        return "" if models.windows(self._model) else "its forward takes no masks by layer"

    def begin(self, device: torch.device, num_rows: int) -> bool:
        """Start a call, and return whether its passes run here. Reuses the graphs of a call of the same kind."""
        kind: tuple[Any, ...] = ()
        self._counts.advice = ""
        if self._is_compiled:
            autocast = torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type)
            kind = device, num_rows, self._model.dtype, autocast
        elif graphs_of(device) is not None:
            with inspected_once(self._model):
                reason = self._refusal() or recorded.refusal(self._model, device)
                if reason:
                    self._counts.advice = f"the draft's passes are not recorded, because {reason} (docs/gpu.md)"
                else:
                    kind = device, num_rows, *recorded.state_of(self._model)
        if not kind or kind != self.kind:
            self._renew(kind)
        return bool(kind)

    def end(self) -> None:
        """Free the cache and the graphs, since the next call's passes do not run here."""
        self._renew(())

    def _renew(self, kind: tuple[Any, ...]) -> None:
        if self._failure:
            self._counts.fall_backs.remove(self._failure)
        has_moved = kind[:1] != self.kind[:1]
        self.kind, self.cache, self._failure = kind, None, ""
        self._windows = models.windows(self._model) if kind else {}
        if not kind:
            self._graphs = None
        elif not self._is_compiled:
            self._graphs = recorded.Recorded(self.forward, kind[0])
        elif has_moved:  # one function compiles passes of all shapes
            self._graphs = _Compiled(self.forward, kind[0])

    def run(self, book: Book, inputs: npt.NDArray[np.int64], kept: int) -> torch.Tensor:
        """Run a pass that the book contains already, padded to a width that is recorded or compiled.

        Args:
            book: the rows, in a book of `cache`.
            inputs: [2, num_rows, width], ids and positions.
            kept: number of last distributions that are needed; logits [num_rows, kept or width, vocab_size] return.
        """
        width = padded = inputs.shape[-1]
        first, graphs = book.num_slots - width, self._graphs if width <= _WIDEST else None
        if graphs is not None:  # the widest is recorded first, so that the others share its memory
            padded = _WIDEST if graphs.is_new else passes.padded(width)
        with torch.inference_mode(mode=False), torch.no_grad():  # passes cannot write to tensors of inference mode
            num_slots = self._reserve(first + padded)
            book.cache = self.cache
            # Padding comes after the pass's tokens: no token sees it, and the next pass overwrites it.
            tokens = np.pad(inputs, ((0, 0), (0, 0), (0, padded - width)), mode="edge")
            in_use = np.zeros((inputs.shape[1], num_slots), dtype=np.bool_)
            in_use[:, : book.num_slots] = book.mask()
            tensors = {"tokens": torch.from_numpy(tokens), "in_use": torch.from_numpy(in_use)}
            static.set_length(self.cache, first)
            if graphs is None:
                moved = {name: tensor.to(self.kind[0]) for name, tensor in tensors.items()}
                return self.forward(**moved, cache=self.cache, kept=kept)
            began = clock.now()
            logits, is_special = graphs.run(tensors, self.cache, first)
            if is_special:
                synchronize(self.kind[0])
                self._counts.compile_s += clock.now() - began
            if graphs.failure and not self._failure:
                what = "compiled" if self._is_compiled else "recorded"
                self._failure = f"the draft's passes are not {what}: {graphs.failure}"
                self._counts.fall_backs.append(self._failure)
            return logits[:, :width]

    def _reserve(self, needed: int) -> int:
        """Create or grow the cache to at least `needed` slots, and return its number of slots."""
        before = 0 if self.cache is None else static.capacity(self.cache)
        num_slots = max(before, _SMALLEST)
        while num_slots < needed:
            num_slots *= 2
        if num_slots > before:
            self.cache = static.static_cache(self._model, num_slots, self.cache)
        return num_slots

    def forward(self, tokens: torch.Tensor, in_use: torch.Tensor, cache: Any, kept: int = 0) -> torch.Tensor:
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
            mask = torch.zeros(visible.shape, dtype=self._model.dtype, device=ids.device)  # added to attention scores
            masks[layer_type] = mask.masked_fill_(~visible, torch.finfo(mask.dtype).min)
        return self._call_model(ids, positions, masks.get("", masks), kept, cache)


class _Compiled:
    """Runs passes with `torch.compile`, with the interface of `Recorded`."""

    is_new = False

    def __init__(self, forward: Callable[..., torch.Tensor], device: torch.device) -> None:
        self.failure = ""
        self._forward, self._device = forward, device
        self._compiled = torch.compile(forward, mode="reduce-overhead" if device.type == "cuda" else None)

    def run(self, inputs: dict[str, torch.Tensor], cache: Any, length: int) -> tuple[torch.Tensor, bool]:
        """Run a pass after the first `length` slots; see `Recorded.run`."""
        call = {name: tensor.to(self._device) for name, tensor in inputs.items()} | {"cache": cache}
        if cache.is_initialized and not self.failure:
            try:
                return passes.run(self._compiled, call, has_own_graph=True)
            # No compiler, an unsupported model, or a thread other than the one that recorded the CUDA graphs.
            except (AssertionError, RuntimeError) as error:
                self.failure = " ".join(str(error).split()[:24]) or type(error).__name__
                static.set_length(cache, length)  # the failed pass may have advanced it
        return self._forward(**call), False
