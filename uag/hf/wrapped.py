"""Models wrapped by LoRA, `torch.compile`, data parallelism, offloading or a replaced forward."""

import inspect
from collections.abc import Collection
from typing import Any

import torch

from uag.hf.cache.caches import CACHE, CACHE_INPUTS
from uag.hf.inspection import per_call

_DATA_PARALLEL = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)


def unwrapped(model: Any) -> Any:
    """Return the model inside a wrapper of `torch.compile` or data parallelism.

    `OptimizedModule.generate` runs the inner model, and data parallelism splits a batch but not its cache. Other
    wrappers (LoRA) change the output.
    """
    if isinstance(model, _DATA_PARALLEL):
        return unwrapped(model.module)
    inner = dict(model.named_children()).get("_orig_mod") if isinstance(model, torch.nn.Module) else None
    return model if inner is None else unwrapped(inner)


@per_call
def inputs_of(model: Any) -> frozenset[str]:
    """Return the parameters of a model's forward; if it has `**kwargs`, also those of the inner model.

    The inner model is the first module whose class declares a cache. A bare `forward(*args, **kwargs)` is assumed to
    take a cache; only a pass shows whether it does.
    """
    parameters = inspect.signature(model.forward).parameters
    if _takes_cache(parameters) or all(p.kind is not inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return frozenset(parameters)
    is_unknown = all(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in parameters.values())
    assumed = frozenset((CACHE,) if is_unknown else ())
    declared = (frozenset(inspect.signature(type(module).forward).parameters) for module in model.modules())
    return frozenset(parameters) | next(filter(_takes_cache, declared), assumed)


def _takes_cache(names: Collection[str]) -> bool:
    return not set(CACHE_INPUTS).isdisjoint(names)


def cache_name(model: Any) -> str | None:
    """Return the name under which a model takes its cache, or None."""
    return next((name for name in CACHE_INPUTS if name in inputs_of(model)), None)


def weight_of(module: Any) -> Any:
    """Return a module's weight, or None. In dynamically quantized modules, `weight` is a method."""
    weight = getattr(module, "weight", None)
    return weight if weight is None or isinstance(weight, torch.Tensor) else weight()


def device_of(model: Any) -> torch.device:
    """Return the device for a model's input ids, even if accelerate loads the weights only during a pass."""
    embeddings = getattr(model, "get_input_embeddings", lambda: None)()
    weight = weight_of(embeddings)
    device = model.device if weight is None else weight.device
    if device.type != "meta":
        return torch.device(device)
    for module in (embeddings, *model.modules()):
        hook = getattr(module, "_hf_hook", None)
        for part in getattr(hook, "hooks", (hook,)):  # a `SequentialHook` holds several
            execution_device = getattr(part, "execution_device", None)
            if execution_device is not None:
                return torch.device(execution_device)
    return torch.device("cpu")
