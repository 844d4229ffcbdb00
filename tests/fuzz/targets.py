"""Targets: tiny models of many classes, the demo, story models if available; and the changes made to them."""

import ast
import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache, lru_cache, partial
from typing import Any
from unittest.mock import patch

import peft
import torch
from torch.nn.modules.module import register_module_forward_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

import uag
from tests.conftest import find_shared
from tests.support.configurations import build
from tests.support.models import ARCHITECTURES, STATEFUL, tiny_model, tiny_of_class, tiny_target
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
WIDE = {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 4}
"""A model with products large enough for fast forms."""


@lru_cache(300)
def built(name: str) -> tuple[Any, Any]:
    """Return a target and its tokenizer; a name "class {options}" is a configuration of that class."""
    class_name, _, options = name.partition(" ")
    if options:
        return build(class_name, ast.literal_eval(options)), small_tokenizer("unigram_lossy")
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
    """Return the last norm over the hidden states, or the embeddings: a module that returns [rows, width, hidden]."""
    size = model.get_input_embeddings().weight.shape[-1]
    norms = [part for part in model.modules() if "Norm" in type(part).__name__ and hasattr(part, "weight")]
    return next((n for n in reversed(norms) if n.weight.shape == (size,)), model.get_input_embeddings())


def _steer(*shape: int) -> torch.Tensor:
    return 1.5 * torch.randn(shape, generator=torch.Generator().manual_seed(9))


class FirstPasses:
    """Adds a vector only in the first passes."""

    def __init__(self) -> None:
        self.num_passes = 0

    def __call__(self, h: torch.Tensor) -> torch.Tensor:
        self.num_passes += 1
        return h + _steer(h.shape[-1]) * (self.num_passes <= 5)


EFFECTS: dict[str, Callable[[], Callable[[torch.Tensor], torch.Tensor]]] = {
    "each": lambda: lambda h: h + _steer(h.shape[-1]),
    "row": lambda: lambda h: h + _steer(64, 1, h.shape[-1])[: h.shape[0]],
    "last": lambda: lambda h: torch.cat([h[:, :-1], h[:, -1:] + _steer(h.shape[-1])], dim=1),
    "width": lambda: lambda h: h + _steer(h.shape[-1]) * h.shape[1],
    "single": lambda: lambda h: h + _steer(h.shape[-1]) * (h.shape[1] == 1),
    "mean": lambda: lambda h: h + h.mean(dim=1, keepdim=True),
    "passes": FirstPasses,
}
"""Functions of hidden states [rows, width, hidden] for hooks and replaced forwards, per position or not."""


def _effect(name: str) -> Callable[[Any], Any]:
    effect = EFFECTS[name]()
    return lambda h: effect(h) if isinstance(h, torch.Tensor) and h.dim() == 3 else h  # some norms get flattened tokens


def _hooked(name: str, model: Any) -> Any:
    effect = _effect(name)
    return _place(model).register_forward_hook(lambda module, args, h: effect(h))


def _hooked_everywhere(name: str, model: Any) -> Any:
    effect, place = _effect(name), _place(model)
    hook: Any = lambda module, args, h: effect(h) if module is place else None  # noqa: E731
    return register_module_forward_hook(hook)


def _replaced(name: str, model: Any) -> Any:
    place, effect = _place(model), _effect(name)
    own = place.forward
    return patch.object(place, "forward", lambda *args, **kwargs: effect(own(*args, **kwargs)))


def _handed_on(model: Any) -> Any:
    own = model.forward
    return patch.object(model, "forward", lambda *args, **kwargs: own(*args, **kwargs))


class Drops(torch.nn.Module):
    """A user's module that replaces a norm, with dropout in training mode."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor, drop: float = 0.1) -> torch.Tensor:
        return torch.nn.functional.dropout(self.inner(x), drop, self.training)


def _swapped(model: Any) -> Any:
    place = _place(model)
    pairs = ((part, name) for part in model.modules() for name, value in part._modules.items() if value is place)
    part, name = next(pairs)
    return patch.dict(part._modules, {name: Drops(place).eval()})


@contextmanager
def _training(rate: float, model: Any, is_swapped: bool = False) -> Iterator[Any]:
    rates = ("p", "dropout", "attention_dropout", "activation_dropout", "dropout_rate")
    with ExitStack() as stack:
        if is_swapped:
            stack.enter_context(_swapped(model))
        for part in model.modules():
            for name in rates:
                if isinstance(vars(part).get(name), float):
                    stack.enter_context(patch.object(part, name, rate))
        stack.callback(model.eval)
        model.train()
        yield


class FunctionMode(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        return found * 0.8 if function is torch.nn.functional.linear else found


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        return found * 0.8 if function in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default) else found


def _patched(where: Any, name: str, scale: float, model: Any) -> Any:
    own = getattr(where, name)

    def scaled(*args: Any, **kwargs: Any) -> Any:
        found = own(*args, **kwargs)
        return (found[0], found[1] * scale) if isinstance(found, tuple) else found * scale

    return patch.object(where, name, scaled)


def _overflowing(value: float, model: Any) -> Any:
    """Replace a few rows of the embeddings, but not of a head that shares them."""
    decoder = model.get_decoder() if model.config.is_encoder_decoder else model
    embeddings = decoder.get_input_embeddings()
    weight = embeddings.weight.detach().clone()
    weight[11::29] = value
    return patch.dict(embeddings._parameters, {"weight": torch.nn.Parameter(weight, requires_grad=False)})


CHANGES: dict[str, Callable[[Any], AbstractContextManager[Any]]] = {
    **{f"hook {effect}": partial(_hooked, effect) for effect in EFFECTS},
    **{f"global hook {effect}": partial(_hooked_everywhere, effect) for effect in ("each", "row", "width")},
    **{f"forward {effect}": partial(_replaced, effect) for effect in ("each", "row", "width", "last")},
    "patched Linear.forward": partial(_patched, torch.nn.Linear, "forward", 0.8),
    "patched DynamicCache.update": partial(_patched, DynamicCache, "update", 0.5),
    "patched DynamicLayer.update": partial(_patched, DynamicLayer, "update", 0.5),
    "function mode": lambda model: FunctionMode(),
    "dispatch mode": lambda model: DispatchMode(),  # type: ignore[no-untyped-call]
    "model.forward": _handed_on,
    "embeddings nan": partial(_overflowing, torch.nan),
    "embeddings inf": partial(_overflowing, torch.inf),
    "module swapped": _swapped,
    "training": partial(_training, 0.0),
    "training dropout": partial(_training, 0.1),
    "training swapped": partial(_training, 0.0, is_swapped=True),
}
"""Maps a name to a temporary change of a target during a call."""


def _quantized(model: Any) -> Any:
    quantize: Any = torch.ao.quantization.quantize_dynamic
    return quantize(copy.deepcopy(model), {torch.nn.Linear}, dtype=torch.qint8)


def _two_adapters(model: Any) -> Any:
    wrapped = lora(model)
    wrapped.add_adapter("wider", peft.LoraConfig(task_type="CAUSAL_LM", r=16, target_modules=["q_proj", "down_proj"]))
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "wider" in name:
                parameter.normal_(0.0, 0.1, generator=torch.Generator().manual_seed(4))
    return wrapped


@contextmanager
def _switched(model: Any) -> Iterator[Any]:
    """Yield a model with its first adapter; after each call, uag assists it with the other one."""
    model.set_adapter("default")
    yield model
    model.set_adapter("wider")
    assist(model)


def assist(model: Any) -> None:
    ids = torch.tensor([[5, 9, 14, 3] * 3])
    lookup = uag.Assistant.from_prompt_lookup(small_tokenizer("byte_level"))
    lookup.generate(model, ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False, num_beams=1)


WRAPPED: dict[str, Callable[[Any], Any]] = {
    "around": lambda model: Around(copy.deepcopy(model)),
    "offloaded": on_cpu,
    "lora": lora,
    "adapters switched": _two_adapters,
    "quantized": _quantized,
}
"""Maps a name to another model made from the plain Llama."""


@cache
def _wrapped(change: str) -> Any:
    return WRAPPED[change](built("llama")[0])


@contextmanager
def changed(model: Any, change: str) -> Iterator[Any]:
    if change in WRAPPED:
        with _switched(_wrapped(change)) if change == "adapters switched" else nullcontext():
            yield _wrapped(change)
    else:
        with CHANGES[change](model) if change else nullcontext():
            yield model


def vocabulary_size(model: Any) -> int:
    size: int = model.config.get_text_config(decoder=True).vocab_size
    return size
