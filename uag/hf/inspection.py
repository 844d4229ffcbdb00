"""A model's modules and their mode, and properties of a model that are cached for the duration of a call."""

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import torch

from uag import forks

T = TypeVar("T")

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def has_hooks(module: Any) -> bool:
    """Whether a module has hooks of its own."""
    return any(getattr(module, name, None) for name in _HOOKS)


def attributes(module: Any) -> tuple[dict[str, Any], ...]:
    """Return a module's attributes, parameters and buffers, by name."""
    return vars(module), module._parameters, module._buffers


def parameters(module: Any) -> dict[str, Any]:
    """Return a module's own parameters by name, which are faster to reach here than as attributes."""
    own: dict[str, Any] = module._parameters
    return own


without_functions = torch._C.DisableTorchFunction  # a context whose operations this thread's function modes do not see

_lock = forks.lock()
_evaluating: weakref.WeakKeyDictionary[Any, set[object]] = weakref.WeakKeyDictionary()
"""The uses of `in_evaluation` of each module that was in training mode."""

_current: ContextVar[tuple[Any, dict[Any, Any]]] = ContextVar("current", default=(None, {}))
"""The model of the current call, and the results of `per_call` functions for it."""


@contextmanager
def inspected_once(model: Any) -> Iterator[None]:
    """Cache the results of `per_call` functions for this model, in this thread, until the outermost context exits."""
    before = _current.get()
    try:
        if before[0] is not model:
            _current.set((model, {}))
        yield
    finally:
        _current.set(before)


def per_call(function: Callable[[Any], T]) -> Callable[[Any], T]:
    """Cache a function's result for a model for the duration of a call; see `inspected_once`."""

    @functools.wraps(function)
    def cached(model: Any) -> T:
        inspected, results = _current.get()
        if inspected is not model:
            return function(model)
        if function not in results:
            results[function] = function(model)
        result: T = results[function]
        return result

    return cached


@per_call
def modules(model: Any) -> list[Any]:
    """Return every module of a model."""
    return list(model.modules())


def is_training(model: Any) -> bool:
    """Whether any part is in training mode, also while `in_evaluation` runs it otherwise in another thread."""
    return any(part.training or part in _evaluating for part in modules(model))


@contextmanager
def in_evaluation(model: Any) -> Iterator[None]:
    """Run a model in evaluation mode, and restore the mode of its modules when the last use ends, in any thread.

    Do not use it on modules that another thread is training: that thread would train them in evaluation mode.
    """
    use, parts = object(), list(model.modules())

    def leave() -> None:
        with _lock:
            for module in parts:
                uses = _evaluating.get(module, set())
                if use in uses and len(uses) == 1:
                    module.training = True
                    del _evaluating[module]
                uses.discard(use)

    with forks.ending(leave):
        with _lock:
            for module in parts:
                if module.training or module in _evaluating:
                    _evaluating.setdefault(module, set()).add(use)
                    module.training = False
        yield
