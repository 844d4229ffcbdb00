"""A target's passes at the fixed width, recorded as graphs on devices that have them; see `uag.hf.cache.recorded`.

Their inputs are those that transformers prepares for a static cache: ids, positions and a 4D mask, all of one shape. So
one graph serves every pass after the prompt. It refers to the cache's tensors, so the cache is kept for the next call.
"""

import weakref
from typing import Any

import torch
from transformers.modeling_outputs import CausalLMOutputWithPast

from uag import forks
from uag.errors import UnsupportedError
from uag.hf.cache import caches, recorded, static
from uag.hf.devices import graphs_of
from uag.hf.inspection import inspected_once

_kept: weakref.WeakKeyDictionary[Any, "RecordedTarget"] = weakref.WeakKeyDictionary()
"""The passes of each model's last call. One more would need memory for another cache."""

_lock = forks.lock()


class RecordedTarget:
    """Runs one target's passes over one static cache; one call at a time uses it.

    Attributes:
        cache: the cache, empty at the start of a call.
    """

    def __init__(self, model: Any, num_slots: int, kind: tuple[Any, ...]) -> None:
        self.cache = static.static_cache(model, num_slots)
        self._model = weakref.ref(model)  # the dictionary of kept passes would keep it alive
        self._kind = kind
        self._options: dict[str, Any] = {}  # arguments of the forward other than tensors
        self._graphs = recorded.Recorded(self._forward, model.device)

    @classmethod
    def take(cls, model: Any, num_rows: int, num_slots: int) -> "RecordedTarget | None":
        """Return the passes for a call, those of an earlier call if they fit, or None if they cannot be recorded."""
        if graphs_of(model.device) is None:
            return None
        with inspected_once(model):
            if recorded.refusal(model, model.device):
                return None
            # Tensors of inference mode cannot be written outside it.
            kind = model.device, num_rows, num_slots, torch.is_inference_mode_enabled(), *recorded.state_of(model)
        with _lock:
            kept = _kept.pop(model, None)
        if kept is None or kept._kind != kind:
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

    @property
    def failure(self) -> str:
        """Why passes are not recorded after all; empty if they are."""
        return self._graphs.failure

    def run(self, inputs: dict[str, Any]) -> tuple[Any, bool]:
        """Run a pass.

        Returns:
            The outputs, whose logits the next pass may overwrite, and whether the pass's time predicts nothing.
        """
        tensors, options = _split(inputs)
        if options != self._options:
            self._options, self._graphs = options, recorded.Recorded(self._forward, self._graphs.device)
        logits, is_special = self._graphs.run(tensors, self.cache, caches.length(self.cache))
        return CausalLMOutputWithPast(logits=logits), is_special

    def _forward(self, cache: Any, **tensors: torch.Tensor) -> torch.Tensor:
        inputs: dict[str, Any] = dict(self._options)
        for name, tensor in tensors.items():
            argument, _, key = name.partition(".")
            if key:
                inputs.setdefault(argument, {})[key] = tensor
            else:
                inputs[argument] = tensor
        model = self._model()
        if model is None:
            raise UnsupportedError("the target was deleted during a call")
        logits: torch.Tensor = model(**inputs, **{caches.CACHE: cache}).logits
        return logits


def _split(inputs: dict[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return a pass's tensors, those of a dictionary (masks by layer) as "name.key", and its other arguments."""
    tensors: dict[str, torch.Tensor] = {}
    options: dict[str, Any] = {}
    for name, value in inputs.items():
        if isinstance(value, torch.Tensor):
            tensors[name] = value
        elif isinstance(value, dict):
            tensors |= {f"{name}.{key}": tensor for key, tensor in value.items()}
        elif name not in caches.CACHE_NAMES:
            options[name] = value
    return tensors, options
