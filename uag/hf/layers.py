"""A model's modules, and which of them multiply by a weight matrix and do nothing else."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_plain_product(module: Any) -> bool:
    """Say whether a module is a plain `nn.Linear` or `Conv1D` on the CPU.

    Not a subclass, nor one with hooks, parametrizations, or weights that are quantized, split over ranks or offloaded.
    """
    if type(module) is not nn.Linear and type(module) is not Conv1D:
        return False
    weight, bias = module.weight, module.bias
    return (
        type(weight) is nn.Parameter
        and (bias is None or type(bias) is nn.Parameter)
        and weight.device.type == "cpu"
        and weight.dtype.is_floating_point
        and weight.is_contiguous()
        and not any(getattr(module, hooks, None) for hooks in _HOOKS)
    )


_walked = threading.local()


@contextmanager
def looked_through(model: Any) -> Iterator[None]:
    """Let this thread list a model's modules once for all that ask for them inside: a call's checks ask ten times."""
    before = getattr(_walked, "last", None)
    _walked.last = model, list(model.modules())
    try:
        yield
    finally:
        _walked.last = before


def modules(model: Any) -> list[Any]:
    """Return every module of a model; inside `looked_through`, as they were when it began."""
    last = getattr(_walked, "last", None)
    return last[1] if last is not None and last[0] is model else list(model.modules())


def held(module: Any, name: str) -> Any:
    """Return what a module or its class holds under a name, None for nothing; not a parameter, buffer or child.

    `nn.Module` looks for a name that is not there for a microsecond, which adds up over the modules of a model.
    """
    return vars(module).get(name, getattr(type(module), name, None))


def as_matrix(layer: Any) -> torch.Tensor:
    """Return a plain layer's weights [out, in]: a view of what it holds."""
    weight: torch.Tensor = layer.weight
    return weight.t() if type(layer) is Conv1D else weight
