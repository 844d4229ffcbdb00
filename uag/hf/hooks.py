"""What somebody has put on a model's modules: forward hooks, and another way to prepare its passes."""

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


def offset_hook(model: Any) -> str:
    """Say of which module a hook counts tokens from the end of a pass, as PEFT's aLoRA does; empty where none does.

    In a block with candidates the same tokens lie elsewhere.
    """
    for name, module in model.named_modules():
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, partial) and hook.keywords.get("alora_offsets") is not None:
                return f"aLoRA ({name}) counts tokens from the end of a pass"
    return ""


def foreign_preparation(model: Any) -> str:
    """Say whose way to prepare a model's passes stands before its own; empty where none does.

    PEFT's for prompt, prefix and P-tuning lays virtual tokens before the first pass, then reads one token at a time.
    """
    name = "prepare_inputs_for_generation"
    found = vars(next(iter(model.modules()))).get(name)
    if found is None or getattr(found, "__func__", None) is getattr(type(model), name):
        return ""
    owner = type(getattr(found, "__self__", found)).__name__
    return f"{name} is that of {owner}, which may take one token at a time"


def is_foreign(hook: Any) -> bool:
    """Whether a hook comes from neither torch nor transformers nor accelerate."""
    return _origin(hook) not in _KNOWN


def _origin(hook: Any) -> str:
    """Name the top package that a hook comes from."""
    function = hook.func if isinstance(hook, partial) else hook
    module = getattr(function, "__module__", None) or type(function).__module__
    return str(module).partition(".")[0]
