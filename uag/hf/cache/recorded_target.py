"""A target's passes at the fixed width, recorded as graphs on devices that have them; see `uag.hf.cache.recorded`.

All have one shape, so one graph serves every pass after the prompt. It refers to the cache's tensors, so these are kept
for the next call.
"""

import weakref
from typing import Any

import torch
from transformers.modeling_outputs import CausalLMOutputWithPast

from uag import forks
from uag.errors import UnsupportedError
from uag.hf.cache import caches, static
from uag.hf.cache.recorded import GraphedModel, kind_of

_kept: weakref.WeakKeyDictionary[Any, "RecordedTarget"] = weakref.WeakKeyDictionary()
"""The passes of each model's last call. One more would need memory for another cache."""

_lock = forks.lock()


class RecordedTarget(GraphedModel):
    """Runs one target's passes over one static cache, empty at the start of a call; one call at a time uses it."""

    def __init__(self, model: Any, num_slots: int, kind: tuple[Any, ...]) -> None:
        super().__init__()
        self.renew(kind, static.static_cache(model, num_slots))
        self._model = weakref.ref(model)  # the dictionary of kept passes would keep it alive

    @classmethod
    def take(cls, model: Any, num_rows: int, num_slots: int) -> "RecordedTarget | None":
        """Return the passes for a call, those of an earlier call if they fit, or None if they cannot be recorded."""
        # Tensors of inference mode cannot be written outside it.
        kind, reason = kind_of(model, model.device, num_rows, num_slots, torch.is_inference_mode_enabled())
        if reason:
            return None
        with _lock:
            kept = _kept.pop(model, None)
        if kept is None or kept.kind != kind:
            return cls(model, num_slots, kind)
        static.wipe(kept.cache, 0)
        static.set_length(kept.cache, 0)
        return kept

    def keep(self) -> None:
        """Keep the passes for the model's next call."""
        model = self._model()
        if model is not None:
            with _lock:
                _kept[model] = self

    def run_prepared(self, inputs: dict[str, Any]) -> tuple[Any, bool]:
        """Run a pass with inputs that transformers prepared; see `run`, but return the model's outputs."""
        inputs = {name: value for name, value in inputs.items() if name not in caches.CACHE_NAMES}
        logits, is_special = self.run(inputs, caches.length(self.cache))
        return CausalLMOutputWithPast(logits=logits), is_special

    def forward(self, cache: Any, **inputs: Any) -> torch.Tensor:
        model = self._model()
        if model is None:
            raise UnsupportedError("the target was deleted during a call")
        logits: torch.Tensor = model(**inputs, **{caches.CACHE: cache}).logits
        return logits
