"""Run a model in evaluation mode temporarily.

In training mode, dropout draws random numbers and gradient checkpointing disables the cache.
"""

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from uag.hf.layers import modules

_held: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
"""Number of active `in_evaluation` contexts per module; threads may share a model."""

_lock = threading.RLock()


def is_training(model: Any) -> bool:
    """Whether any part of a model is in training mode, or is only kept out of it by `in_evaluation`."""
    parts = modules(model)
    return any(part.training for part in parts) or (bool(_held) and any(part in _held for part in parts))


@contextmanager
def in_evaluation(model: Any) -> Iterator[None]:
    """Run a model in evaluation mode, and restore the mode of its modules at the end.

    Do not use it on modules that another thread is training: that thread would train them in evaluation mode.
    """
    held: list[Any] = []
    try:
        with _lock:
            for module in model.modules():
                if module.training or module in _held:
                    module.training = False
                    if not module.training:  # otherwise it is a wrapper that reports an inner module's mode
                        _held[module] = _held.get(module, 0) + 1
                        held.append(module)
        yield
    finally:
        with _lock:
            for module in held:
                _held[module] -= 1
                if not _held[module]:
                    del _held[module]
                    module.training = True
