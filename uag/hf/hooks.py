"""Forward hooks that somebody has put on a model's modules."""

from functools import partial
from typing import Any

_KNOWN = ("accelerate", "torch", "transformers")
"""Whose hooks move tensors, split or normalise weights, and see no rows."""


def foreign_hook(model: Any) -> str:
    """Name a module of a model that has a forward hook of somebody else's; empty where there is none.

    Such a hook may hold one value for each row (a steering vector, a mask), or note what every row gives.
    """
    for name, module in model.named_modules():
        hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
        if any(is_foreign(hook) for hook in hooks):
            return name or type(module).__name__
    return ""


def is_foreign(hook: Any) -> bool:
    """Whether a hook comes from neither torch nor transformers nor accelerate."""
    return _origin(hook) not in _KNOWN


def _origin(hook: Any) -> str:
    """Name the top package that a hook comes from."""
    function = hook.func if isinstance(hook, partial) else hook
    module = getattr(function, "__module__", None) or type(function).__module__
    return str(module).partition(".")[0]
