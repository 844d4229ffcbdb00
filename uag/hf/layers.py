"""The modules of a model, and answers about a model that hold for a whole call."""

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

T = TypeVar("T")

PRODUCTS: frozenset[type] = frozenset((nn.Linear, Conv1D))
"""Classes of modules that multiply by a weight matrix and do nothing else."""

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_plain_product(module: Any) -> bool:
    """Return whether a module is a plain `nn.Linear` or `Conv1D` on the CPU.

    Subclasses are not, nor are modules with hooks, parametrizations, or weights that are quantized, split over ranks or
    offloaded.
    """
    if type(module) not in PRODUCTS:
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


class _Inspection:
    """A model's modules, and the answers of `per_call` functions, during one call."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.modules = _walk(model)
        self.answers: dict[Any, Any] = {}


_current = threading.local()


@contextmanager
def inspected_once(model: Any) -> Iterator[None]:
    """Evaluate every `per_call` function once for this model, in this thread, until the context ends."""
    before = getattr(_current, "inspection", None)
    _current.inspection = _Inspection(model)
    try:
        yield
    finally:
        _current.inspection = before


def per_call(function: Callable[[Any], T]) -> Callable[[Any], T]:
    """Decorate a function of a model whose result holds for a whole call; see `inspected_once`."""

    @functools.wraps(function)
    def answer(model: Any) -> T:
        inspection = getattr(_current, "inspection", None)
        if inspection is None or inspection.model is not model:
            return function(model)
        if function not in inspection.answers:
            inspection.answers[function] = function(model)
        result: T = inspection.answers[function]
        return result

    return answer


def modules(model: Any) -> list[Any]:
    """Return every module of a model; inside `inspected_once`, the modules at its start."""
    inspection = getattr(_current, "inspection", None)
    if inspection is not None and inspection.model is model:
        known: list[Any] = inspection.modules
        return known
    return _walk(model)


def _walk(model: Any) -> list[Any]:
    """Return every module once, five times as fast as `nn.Module.modules`."""
    visited: dict[Any, None] = {}
    waiting = [next(iter(model.modules()))]  # a weak proxy of a draft cannot be a key
    while waiting:
        module = waiting.pop()
        if module not in visited:
            visited[module] = None
            waiting += [child for child in module._modules.values() if child is not None]
    return list(visited)


def as_matrix(layer: Any) -> torch.Tensor:
    """Return a plain layer's weights as a view [out, in]."""
    weight: torch.Tensor = layer.weight
    return weight.t() if type(layer) is Conv1D else weight
