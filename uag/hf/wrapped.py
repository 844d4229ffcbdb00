"""Models inside other modules: LoRA, `torch.compile`, data parallelism, offloading, a forward that somebody replaced.

What such a module takes is not in its own signature, and where its passes run not in its weights.
"""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

from uag.hf.layers import per_call

CACHE = "past_key_values"

_DATA_PARALLEL = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)


def unwrapped(model: Any) -> Any:
    """Return what `generate` would run of a model that `torch.compile`, or data parallelism, has wrapped.

    `OptimizedModule.generate` is that of the model inside, whose passes run as they are: growing inputs would be
    compiled over and over. Data parallelism splits a batch, but not its cache. Other wrappers (LoRA) stay: what they
    add counts.
    """
    if isinstance(model, _DATA_PARALLEL):
        return unwrapped(model.module)
    inside = dict(model.named_children()).get("_orig_mod") if isinstance(model, torch.nn.Module) else None
    return model if inside is None else unwrapped(inside)


@per_call
def inputs_of(model: Any) -> frozenset[str]:
    """Return the names that a model's forward takes; behind `**kwargs` those, too, of the model inside.

    The model inside is the first module whose class names a cache; where a forward names nothing at all, it may be one
    that takes a cache. Whether its inputs reach it, a pass tells.
    """
    own = _parameters(model.forward)
    if CACHE in own or all(given.kind is not inspect.Parameter.VAR_KEYWORD for given in own.values()):
        return frozenset(own)
    hides = all(given.kind in (given.VAR_KEYWORD, given.VAR_POSITIONAL) for given in own.values())
    unknown = frozenset((CACHE,) if hides else ())
    return frozenset(own) | next((names for names in _declared(model) if CACHE in names), unknown)


def _declared(model: Any) -> Iterator[frozenset[str]]:
    """Yield what the class of each module of a model declares, the model's own first."""
    for module in model.modules():
        yield frozenset(_parameters(type(module).forward))


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)


def device_of(model: Any) -> torch.device:
    """Return the device on which a model reads its ids, also where accelerate brings the weights only for a pass."""
    embeddings = getattr(model, "get_input_embeddings", lambda: None)()
    weight = getattr(embeddings, "weight", None)
    if weight is not None and not isinstance(weight, torch.Tensor):  # dynamically quantized modules have a method
        weight = weight()
    device = model.device if weight is None else weight.device
    if device.type != "meta":
        return torch.device(device)
    for module in (embeddings, *model.modules()):
        hook = getattr(module, "_hf_hook", None)
        for part in getattr(hook, "hooks", (hook,)):  # several are one `SequentialHook`
            found = getattr(part, "execution_device", None)
            if found is not None:
                return torch.device(found)
    return torch.device("cpu")


def is_offloaded(model: Any) -> bool:
    """Whether some weights come only for a pass, in place of parameters that hold nothing."""
    return any(parameter.device.type == "meta" for parameter in model.parameters())
