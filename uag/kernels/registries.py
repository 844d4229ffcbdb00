"""transformers' registries, from which a model's layers take their functions for attention and experts."""

from collections.abc import Callable
from typing import Any

import torch
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]

_uses: set[object] = set()


def enter(use: object, attention: Wrap, experts: Wrap) -> None:
    """Wrap what the registries return, until all uses have left; the caller makes sure that one runs at a time.

    The wrapper of a registry's `get_interface` is an attribute of the registry, so its entries stay as they are.
    """
    _uses.add(use)
    for registry, wrap in ((ALL_ATTENTION_FUNCTIONS, attention), (ALL_EXPERTS_FUNCTIONS, experts)):
        if "get_interface" not in vars(registry):
            vars(registry)["get_interface"] = _wrapped(registry, wrap)


def leave(use: object) -> None:
    """Undo `enter` after the last use."""
    _uses.discard(use)
    if not _uses:
        for registry in (ALL_ATTENTION_FUNCTIONS, ALL_EXPERTS_FUNCTIONS):
            vars(registry).pop("get_interface", None)


def _wrapped(registry: Any, wrap: Wrap) -> Callable[[str, Callable[..., Any]], Callable[..., Any]]:
    def get_interface(name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        function: Callable[..., Any] = type(registry).get_interface(registry, name, default)
        return function if torch.compiler.is_compiling() else wrap(function)

    return get_interface
