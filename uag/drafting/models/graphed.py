"""A draft's passes over a static cache, so that the narrow ones can be recorded as graphs, or compiled."""

import weakref
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from uag import forks
from uag.drafting.drafter import Counts
from uag.errors import UnsupportedError
from uag.hf import models, passes, wrapped
from uag.hf.cache import caches, static
from uag.hf.cache.book import Book
from uag.hf.cache.recorded import GraphedModel, kind_of, moved
from uag.hf.devices import graphs_of, synchronize
from uag.lookahead import clock

_WITH_4D_MASKS = ("sdpa", "eager")  # transformers' own attention implementations that accept a 4D mask
_WIDEST = 4  # tokens per row of the widest pass that is recorded or compiled; wider ones are rare
_SMALLEST = 1024  # initial cache slots, doubled as needed: 24 MB per row for 135 million weights in bfloat16


class StaticPasses(GraphedModel):
    """Runs a draft's passes over a static cache, which is kept between calls, because graphs refer to its tensors.

    The model has full attention in every layer; the method `call_model` runs it with ids, positions, a mask, a number
    of last logits and a cache. Passes are compiled, on any device, or recorded on devices with graphs.
    """

    def __init__(self, model: Any, call_model: Any, counts: Counts, *, is_compiled: bool) -> None:
        if not is_compiled:  # a cycle would keep the draft; PyTorch does not compile weak references
            call_model = partial(call_model.__func__, weakref.proxy(call_model.__self__))
        self._model, self._call_model, self._counts = model, call_model, counts
        self._windows: dict[str, int | None] = {}
        self._is_compiled = is_compiled
        self._compiled: Any = None
        self._reported = ""  # why passes are not recorded or compiled after all
        super().__init__()
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
        unusual = models.layers_other_than(caches.WITH_KEYS, self._model)
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
            reason = self._refusal()
            if not reason:
                kind, reason = kind_of(self._model, device, num_rows)
            if reason:
                self._counts.advice = f"the draft's passes are not recorded, because {reason} (docs/gpu.md)"
        if not kind or kind != self.kind:
            self.renew(kind)
        return bool(kind)

    def renew(self, kind: tuple[Any, ...], cache: Any = None) -> None:
        if self._reported:
            self._counts.fall_backs.remove(self._reported)
        self._reported = ""
        self._windows = models.windows(self._model) if kind else {}
        has_moved, failure = kind[:1] != self.kind[:1], self.failure
        if self._is_compiled and kind and has_moved:  # one function compiles passes of all shapes
            mode = "reduce-overhead" if kind[0].type == "cuda" else None
            self._compiled = torch.compile(self.forward, mode=mode)
        super().renew(kind, cache)
        self.failure = failure if self._is_compiled and not has_moved else ""

    def run_book(self, book: Book, inputs: npt.NDArray[np.int64], kept: int) -> torch.Tensor:
        """Run a pass that the book contains already, padded to a width that is recorded or compiled.

        `inputs` [2, num_rows, width] are ids and positions; logits [num_rows, kept or width, vocab_size] return.
        """
        width = padded = inputs.shape[-1]
        first, is_narrow = book.num_slots - width, width <= _WIDEST
        if is_narrow:  # the widest is recorded first, so that the others share its memory
            padded = _WIDEST if self.is_new and not self._is_compiled else passes.padded(width)
        with torch.inference_mode(mode=False), torch.no_grad():  # passes cannot write to tensors of inference mode
            num_slots = self._reserve(first + padded)
            book.cache = self.cache
            # Padding comes after the pass's tokens: no token sees it, and the next pass overwrites it.
            tokens = np.pad(inputs, ((0, 0), (0, 0), (0, padded - width)), mode="edge")
            in_use = np.zeros((inputs.shape[1], num_slots), dtype=np.bool_)
            in_use[:, : book.num_slots] = book.mask()
            tensors = {"tokens": torch.from_numpy(tokens), "in_use": torch.from_numpy(in_use)}
            static.set_length(self.cache, first)
            if not is_narrow:
                return self.forward(**moved(tensors, self.kind[0]), cache=self.cache, kept=kept)
            began = clock.now()
            logits, is_special = (self._run_compiled if self._is_compiled else self.run)(tensors, first)
            if is_special:
                synchronize(self.kind[0])
                self._counts.compile_s += clock.now() - began
            if self.failure and not self._reported:
                what = "compiled" if self._is_compiled else "recorded"
                self._reported = f"the draft's passes are not {what}: {self.failure}"
                self._counts.fall_backs.append(self._reported)
            return logits[:, :width]

    def _run_compiled(self, inputs: dict[str, torch.Tensor], length: int) -> tuple[torch.Tensor, bool]:
        call = moved(inputs, self.kind[0]) | {"cache": self.cache}
        if self.cache.is_initialized and not self.failure:
            try:
                return passes.run(self._compiled, call, has_own_graph=True)
            # No compiler, an unsupported model, or a thread other than the one that recorded the CUDA graphs.
            except (AssertionError, RuntimeError) as error:
                forks.let_pass(error)
                self.failure = " ".join(str(error).split()[:24]) or type(error).__name__
                static.set_length(self.cache, length)  # the failed pass may have advanced it
        return self.forward(**call), False

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

        `tokens` [2, num_rows, width] are ids and positions; `in_use` [num_rows, num_slots] tells which slots hold a
        token of the row after the pass, and the cache is set to the number of slots before it.
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
        logits: torch.Tensor = self._call_model(ids, positions, masks.get("", masks), kept, cache)
        return logits
