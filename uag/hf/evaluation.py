"""Running a model in evaluation mode, whatever mode it is in.

In training mode dropout draws random numbers, and gradient checkpointing keeps no cache.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from uag.hf.layers import modules
from uag.hf.trials.locks import ProcessLock

_held: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
"""How many callers hold each module in evaluation mode: threads may share a model."""

_lock = ProcessLock()


def is_training(model: Any) -> bool:
    """Whether any part of a model is in training mode, or would be if it were not held in evaluation mode."""
    everything = modules(model)
    return any(module.training for module in everything) or (bool(_held) and any(m in _held for m in everything))


@contextmanager
def in_evaluation(model: Any) -> Iterator[None]:
    """Run a model in evaluation mode, and restore the mode of its modules at the end.

    Not for modules that another thread trains at the same time: it would train them in evaluation mode.
    """
    held: list[Any] = []
    try:
        with _lock:
            for module in model.modules():
                if module.training or module in _held:
                    module.training = False
                    if not module.training:  # otherwise it is a wrapper that reports the mode of a module inside
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
