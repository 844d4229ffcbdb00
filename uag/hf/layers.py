"""A model's modules, and properties of a model that are cached for the duration of a call."""

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def has_hooks(module: Any) -> bool:
    """Whether a module has hooks of its own."""
    return any(getattr(module, name, None) for name in _HOOKS)


class _Inspection:
    """A model's modules and the results of `per_call` functions during one call."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.modules = list(model.modules())
        self.results: dict[Any, Any] = {}


_current = threading.local()


@contextmanager
def inspected_once(model: Any) -> Iterator[None]:
    """Cache the results of `per_call` functions for this model, in this thread, until the context exits."""
    before = getattr(_current, "inspection", None)
    _current.inspection = _Inspection(model)
    try:
        yield
    finally:
        _current.inspection = before


def per_call(function: Callable[[Any], T]) -> Callable[[Any], T]:
    """Cache a function's result for a model for the duration of a call; see `inspected_once`."""

    @functools.wraps(function)
    def cached(model: Any) -> T:
        inspection = getattr(_current, "inspection", None)
        if inspection is None or inspection.model is not model:
            return function(model)
        if function not in inspection.results:
            inspection.results[function] = function(model)
        result: T = inspection.results[function]
        return result

    return cached


def modules(model: Any) -> list[Any]:
    """Return every module of a model; inside `inspected_once`, the modules listed when it was entered."""
    inspection = getattr(_current, "inspection", None)
    if inspection is not None and inspection.model is model:
        cached: list[Any] = inspection.modules
        return cached
    return list(model.modules())
