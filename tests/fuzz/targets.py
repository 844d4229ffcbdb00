"""Targets: tiny models of many classes, the demo, story models where they are, and everything that may be done to them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import torch
import transformers
from torch.nn.modules.module import register_module_forward_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from tests.conftest import find_shared
from tests.support.models import ARCHITECTURES, STATEFUL, tiny_model, tiny_target
from tests.support.tiny_classes import tiny_of_class
from tests.support.tokenizers import small_tokenizer
from tests.support.trained import trained
from tests.support.wrappers import Around, lora, on_cpu

CLASSES = (
    "ApertusForCausalLM", "BambaForCausalLM", "BertLMHeadModel", "BioGptForCausalLM", "CTRLLMHeadModel",
    "Cohere2ForCausalLM", "DeepseekV3ForCausalLM", "Exaone4ForCausalLM", "Gemma3nForCausalLM", "GraniteMoeForCausalLM",
    "Llama4ForCausalLM", "MBartForConditionalGeneration", "MiniMaxForCausalLM", "OlmoeForCausalLM", "PhimoeForCausalLM",
    "Qwen3MoeForCausalLM", "SmolLM3ForCausalLM", "XGLMForCausalLM",
)  # fmt: skip
STORIES = ("stories-tok361", "stories260K", "stories-tok105") if find_shared() else ()
TRAINED = ("demo-target", *STORIES)
WIDE = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8,
        "num_key_value_heads": 4, "max_position_embeddings": 256}  # fmt: skip
"""A model whose products are worth a form of their own."""

NAMES = ("llama", "wide", *(name for name in ARCHITECTURES if name != "llama"), *STATEFUL, *CLASSES, *TRAINED)


@cache
def built(name: str) -> tuple[Any, Any]:
    """Return a target and its tokenizer, built once per process."""
    if name in TRAINED:
        return trained(name)
    if name == "wide":
        tokenizer = small_tokenizer("byte_level")
        return tiny_model("llama", len(tokenizer) + 5, **WIDE), tokenizer
    if name in ARCHITECTURES:
        return tiny_target(name)
    if name in STATEFUL:
        tokenizer = small_tokenizer("byte_level")
        return tiny_model(STATEFUL[name][0], len(tokenizer) + 5, **STATEFUL[name][1]), tokenizer
    return tiny_of_class(name), small_tokenizer("unigram_lossy")


def _place(model: Any) -> Any:
    """Return the last norm over the hidden states, or the embeddings: a module that gives [rows, width, hidden]."""
    size = model.get_input_embeddings().weight.shape[-1]
    norms = [part for part in model.modules() if "Norm" in type(part).__name__ and hasattr(part, "weight")]
    return next((n for n in reversed(norms) if n.weight.shape == (size,)), model.get_input_embeddings())


def _steer(shape: Any, scale: float = 1.5) -> torch.Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(9))


class FirstPasses:
    """Adds a vector in the first passes only."""

    def __init__(self) -> None:
        self.num_passes = 0

    def __call__(self, h: torch.Tensor) -> torch.Tensor:
        self.num_passes += 1
        return h + _steer(h.shape[-1]) * (self.num_passes <= 5)


def _last(h: torch.Tensor) -> torch.Tensor:
    return torch.cat([h[:, :-1], h[:, -1:] + _steer(h.shape[-1])], dim=1)


EFFECTS: dict[str, Callable[[], Callable[[torch.Tensor], torch.Tensor]]] = {
    "each": lambda: lambda h: h + _steer(h.shape[-1]),
    "row": lambda: lambda h: h + _steer((64, 1, h.shape[-1]))[: h.shape[0]],
    "last": lambda: _last,
    "width": lambda: lambda h: h + _steer(h.shape[-1]) * h.shape[1],
    "single": lambda: lambda h: h + _steer(h.shape[-1]) * (h.shape[1] == 1),
    "mean": lambda: lambda h: h + h.mean(dim=1, keepdim=True),
    "passes": FirstPasses,
}
"""What hooks and replaced forwards do to hidden states [rows, width, hidden]: at each position alone, or not."""


@contextmanager
def _hooked(effect: str, model: Any) -> Iterator[Any]:
    change = EFFECTS[effect]()
    handle = _place(model).register_forward_hook(lambda module, args, h: change(h))
    yield model
    handle.remove()


@contextmanager
def _hooked_everywhere(effect: str, model: Any) -> Iterator[Any]:
    change, place = EFFECTS[effect](), _place(model)
    handle = register_module_forward_hook(lambda module, args, h: change(h) if module is place else None)
    yield model
    handle.remove()


@contextmanager
def _replaced(effect: str, model: Any) -> Iterator[Any]:
    place, change = _place(model), EFFECTS[effect]()
    own = place.forward
    place.forward = lambda *args, **kwargs: change(own(*args, **kwargs))
    yield model
    del place.forward


@contextmanager
def _model_forward(model: Any) -> Iterator[Any]:
    own = model.forward
    model.forward = lambda *args, **kwargs: own(*args, **kwargs)
    yield model
    del model.forward


@contextmanager
def _module_swapped(model: Any) -> Iterator[Any]:
    """Put a module of somebody's own in the place of a norm: random in training mode."""
    place = _place(model)
    parent, name = next(
        (part, key) for part in model.modules() for key, value in part.named_children() if value is place
    )

    class Drops(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = place

        def forward(self, x: torch.Tensor, drop: float = 0.1) -> torch.Tensor:
            return torch.nn.functional.dropout(self.inner(x), drop, self.training)

    setattr(parent, name, Drops().train(model.training))
    yield model
    setattr(parent, name, place)


@contextmanager
def _training(rate: float, model: Any) -> Iterator[Any]:
    before = [(part, name, getattr(part, name)) for part in model.modules() for name in ("p", "dropout",
              "attention_dropout", "activation_dropout", "dropout_rate") if isinstance(vars(part).get(name), float)]
    for part, name, _ in before:
        setattr(part, name, rate)
    model.train()
    yield model
    model.eval()
    for part, name, value in before:
        setattr(part, name, value)


@contextmanager
def _training_swapped(model: Any) -> Iterator[Any]:
    with _training(0.0, model), _module_swapped(model):
        model.train()
        yield model


class FunctionMode(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        return found * 0.8 if function is torch.nn.functional.linear else found


class DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        return found * 0.8 if function in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default) else found


PATCHES: dict[str, tuple[Any, str, float]] = {
    "Linear.forward": (torch.nn.Linear, "forward", 0.8),
    "F.linear": (torch.nn.functional, "linear", 0.8),
    "F.embedding": (torch.nn.functional, "embedding", 1.3),
    "torch.rsqrt": (torch, "rsqrt", 0.8),
    "Tensor.pow": (torch.Tensor, "pow", 1.4),
}


@contextmanager
def _patched(name: str, model: Any) -> Iterator[Any]:
    where, attribute, scale = PATCHES[name]
    own = getattr(where, attribute)
    with patch.object(where, attribute, lambda *args, **kwargs: own(*args, **kwargs) * scale):
        yield model


@contextmanager
def _cache_patched(kind: type, model: Any) -> Iterator[Any]:
    own = kind.update  # type: ignore[attr-defined]

    def update(*args: Any, **kwargs: Any) -> Any:
        keys, values = own(*args, **kwargs)
        return keys, values * 0.5

    with patch.object(kind, "update", update):
        yield model


@contextmanager
def _mode(kind: type[Any], model: Any) -> Iterator[Any]:
    with kind():
        yield model


@contextmanager
def _made(make: Callable[[Any], Any], model: Any) -> Iterator[Any]:
    yield make(model)


_kept: dict[Any, Any] = {}


def _once(make: Callable[[Any], Any], model: Any) -> Any:
    key = (make, id(model))  # `built` keeps the models
    if key not in _kept:
        _kept[key] = make(model)
    return _kept[key]


def _around(model: Any) -> Any:
    return Around(copy.deepcopy(model))


def _quantized(model: Any) -> Any:
    return torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {torch.nn.Linear}, dtype=torch.qint8)


Change = Callable[[Any], AbstractContextManager[Any]]

CHANGES: dict[str, Change] = {
    **{f"hook {effect}": partial(_hooked, effect) for effect in EFFECTS},
    **{f"global hook {effect}": partial(_hooked_everywhere, effect) for effect in ("each", "row", "width")},
    **{f"forward {effect}": partial(_replaced, effect) for effect in ("each", "row", "width", "last")},
    **{f"patched {name}": partial(_patched, name) for name in PATCHES},
    "patched DynamicCache.update": partial(_cache_patched, DynamicCache),
    "patched DynamicLayer.update": partial(_cache_patched, DynamicLayer),
    "function mode": partial(_mode, FunctionMode),
    "dispatch mode": partial(_mode, DispatchMode),
    "model.forward": _model_forward,
    "module swapped": _module_swapped,
    "training": partial(_training, 0.0),
    "training dropout": partial(_training, 0.1),
    "training swapped": _training_swapped,
    "around": partial(_made, partial(_once, _around)),
    "offloaded": partial(_made, partial(_once, on_cpu)),
    "lora": partial(_made, partial(_once, lora)),
    "quantized": partial(_made, partial(_once, _quantized)),
}
"""Name -> what is done to a target for the length of a call."""

FEW = ("around", "offloaded", "lora", "quantized")
"""Changes that are made of the plain Llama alone: they take time to build."""


@contextmanager
def changed(model: Any, change: str) -> Iterator[Any]:
    """Lend a target as a change makes it."""
    with CHANGES[change](model) if change else nullcontext(model) as found:
        yield found


def config_of(model: Any) -> transformers.PreTrainedConfig:
    """Return the configuration of the text that a target writes."""
    return model.config.get_text_config(decoder=True)
