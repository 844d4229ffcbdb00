"""Run a model in evaluation mode temporarily.

In training mode, dropout draws random numbers and gradient checkpointing disables the cache.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from uag.hf.inspection import modules


def is_training(model: Any) -> bool:
    """Whether any part of a model is in training mode."""
    return any(part.training for part in modules(model))


@contextmanager
def in_evaluation(model: Any) -> Iterator[None]:
    """Run a model in evaluation mode, and restore the mode of its modules at the end.

    Do not use it on modules that another thread is training: that thread would train them in evaluation mode.
    """
    parts = [module for module in model.modules() if module.training]
    try:
        for module in parts:
            module.training = False
        yield
    finally:
        for module in parts:
            module.training = True
