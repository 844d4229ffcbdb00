"""Detects code that changes what a model computes, or observes its passes.

Code around a forward may depend on the width of a pass, on the number of passes before it, or on the row of the batch,
and no trial can rule that out. Layers, attention and experts of other packages compute each token from its position, so
the trial is enough for them.
"""

import functools
import re
import sys
import weakref
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch.nn.modules import module as torch_module
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from transformers import Cache
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from uag.hf.inspection import modules, per_call

_TRUSTED = frozenset(("torch", "transformers", "accelerate", "kernels", "uag"))
"""Packages whose hooks and replaced functions only move, split or normalize tensors."""

_TESTED = _TRUSTED | {"peft"}  # packages whose modules the tests cover

_BASE = frozenset(("torch", "transformers"))

_STANDARD = frozenset(sys.stdlib_module_names) - {"unittest"}

_PASS_METHODS = (
    *("forward", "__call__", "_call_impl", "prepare_inputs_for_generation"),
    *("_update_model_kwargs_for_generation", "_prefill"),
)
"""Functions of a module that a pass calls, which other code may replace. PEFT's preparation, for prompt, prefix and
P-tuning, prepends virtual tokens in the first pass and then expects single tokens."""

_INSTALLED = re.compile(r"[/\\](site-packages|dist-packages|snapshots)[/\\]")
"""Folders of installed packages and of kernels from the hub. Their forwards, such as Liger's, are layers that a trial
can test; one that a user's own file or notebook puts into a model may be a steering vector or a recorder."""


@per_call
def changes(model: Any) -> str:
    """Return a description of code in a model's passes that no trial can test, or an empty string.

    Code from torch, transformers, accelerate, PEFT and uag is ignored, and what `of_others` finds.
    """
    found = (name for name, _, is_layer in _replaced(model) if not is_layer)
    return _modes() or _global_hooks() or next(filter(None, map(_around, modules(model))), "") or next(found, "")


@per_call
def layers_of_others(model: Any) -> tuple[tuple[str, Any], ...]:
    """Return what a trial must test, as descriptions and weak references.

    These are forwards that installed packages replaced, and attention and experts that any other code registered.
    """
    layers = [(name, value) for name, value, is_layer in _replaced(model) if is_layer]
    origins = ((name, next(_origins(value), None)) for name, value in (*layers, *_registered(model)))
    # A function may refer to the model, which must not live as long as the result of its trial.
    return tuple((name, origin and weakref.ref(origin[1])) for name, origin in origins)


@per_call
def of_others(model: Any) -> str:
    """Describe a part of a model that comes from packages that uag's tests do not cover, or return an empty string."""
    if not type(model).__module__.startswith("transformers.models."):
        return f"the class {type(model).__name__}"
    for kind, module in {type(module): module for module in modules(model)}.items():
        # A quantized linear layer is a matrix product, regardless of its package.
        if not is_of_tested_package(kind) and not hasattr(module, "in_features"):
            return f"a layer of the class {kind.__name__}"
    return next((name for name, _ in layers_of_others(model)), "")


@per_call
def functions(model: Any) -> tuple[Any, ...]:
    """Return weak references to what a model's classes in transformers call by name; other code may replace it."""
    names = dict.fromkeys(type(module).__module__ for module in modules(model))
    places = [vars(sys.modules[name]) for name in names if name.startswith("transformers.models.")]
    functions = (value for place in places for value in list(place.values()) if isinstance(value, FunctionType))
    return tuple(map(weakref.ref, functions))


def classes_of_others(model: Any) -> list[type]:
    """Return the classes of a model's modules that come from outside PyTorch and transformers, and their bases."""
    kinds = {kind for kind in map(type, modules(model)) if _root(kind.__module__) not in _BASE}
    bases = dict.fromkeys(base for kind in kinds for base in kind.__mro__)
    return [base for base in bases if _root(base.__module__) not in _BASE | _STANDARD]


def is_plain_object(value: Any) -> bool:
    """Return whether a value is an object of other code with attributes, such as the parameters of a vector."""
    is_other = not (is_of_tested_package(type(value)) or isinstance(value, ModuleType) or callable(value))
    return is_other and hasattr(value, "__dict__")


@per_call
def has_unknown_code(model: Any) -> bool:
    """Return whether a model has code outside PyTorch and transformers, which may change what it computes."""
    return bool(layers_of_others(model) or classes_of_others(model))


def has_compiled_functions(model: Any) -> bool:
    """Return whether code outside PyTorch and transformers has compiled functions, which its forwards may call."""
    kinds = classes_of_others(model)
    places = [*map(vars, kinds), *(vars(sys.modules.get(kind.__module__, kind)) for kind in kinds)]
    # PyTorch leaves what it compiles under names that begin with underscores.
    values = [value for place in places for name, value in [*place.items()] if not name.startswith("__")]
    functions = (value.__func__ if isinstance(value, staticmethod) else value for value in values)
    return any(isinstance(each, FunctionType) and "_torchdynamo_orig_callable" in vars(each) for each in functions)


def cache_change(cache: Any) -> str:
    """Return a description of foreign code in a cache, or an empty string for None and transformers' own caches."""
    caches = [] if cache is None else [cache, *(part for part in vars(cache).values() if isinstance(part, Cache))]
    for part in (*caches, *(layer for inner in caches for layer in getattr(inner, "layers", ()))):
        update = getattr(part, "update", None)
        if _root(type(part).__module__) not in _TRUSTED or (update is not None and not _is_trusted(update)):
            return f"{type(part).__name__} of the cache"
    return ""


def _modes() -> str:
    functions = (torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack()))
    for mode in (*functions, *_get_current_dispatch_mode_stack()):
        if _root(type(mode).__module__) != "torch":
            return f"the active mode {type(mode).__name__}"
    return ""


def _global_hooks() -> str:
    for name in ("_global_forward_hooks", "_global_forward_pre_hooks"):
        if not all(map(_is_trusted, getattr(torch_module, name).values())):
            return "a forward hook on all modules"
    return ""


def _around(module: Any) -> str:
    known, name = vars(module), type(module).__name__
    for hook in (*known["_forward_hooks"].values(), *known["_forward_pre_hooks"].values()):
        if not _is_trusted(hook):
            return f"a forward hook on {name}"
    if "_hf_hook" in known and not _is_trusted(known["_hf_hook"]):
        return f"_hf_hook of {name}"
    return ""


@per_call
def _replaced(model: Any) -> tuple[tuple[str, Any, bool], ...]:
    """Return functions that others put into modules and classes, and whether each is another package's layer."""
    parts = modules(model)
    kinds = dict.fromkeys(filter(is_of_tested_package, map(type, parts)))
    of_kinds = ((name, kind, getattr(kind, name, None), _TESTED) for kind in kinds for name in _PASS_METHODS)
    names = ((name, part) for part in parts for name in vars(part).keys() & _PASS_METHODS)
    of_parts = ((name, type(part), vars(part).get(name), _TRUSTED) for name, part in names)
    return tuple(
        (f"{name} of {kind.__name__}", value, name == "forward" and _is_installed(value))
        for name, kind, value, trusted in (*of_kinds, *of_parts)
        if value is not None and not _is_trusted(value, trusted)
    )


def _registered(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the model's attention, masks and experts, if code outside transformers registered them."""
    config = model.config.get_text_config(decoder=True)
    attention, experts = config._attn_implementation, config._experts_implementation
    for name, function in (
        (f"the attention {attention!r}", ALL_ATTENTION_FUNCTIONS.get(attention)),
        (f"the attention {attention!r}", ALL_MASK_ATTENTION_FUNCTIONS.get(attention)),
        (f"the experts {experts!r}", ALL_EXPERTS_FUNCTIONS.get(experts)),
    ):
        if function is not None and not _is_trusted(function):
            yield name, function


def is_of_tested_package(kind: type) -> bool:
    """Return whether the tests of uag cover the layers of a class's package."""
    return _root(kind.__module__) in _TESTED


def is_product_replaced() -> bool:
    """Return whether other code replaced PyTorch's linear layer, or the function that it calls."""
    return not isinstance(torch.nn.functional.linear, BuiltinFunctionType) or not _is_trusted(torch.nn.Linear.forward)


def _root(module_name: Any) -> str:
    return str(module_name).partition(".")[0]


def _is_trusted(value: Any, trusted: frozenset[str] = _TRUSTED) -> bool:
    """Whether a callable and everything that it wraps come from trusted packages."""
    roots = {root for root, _ in _origins(value)}
    return bool(roots & trusted) and roots <= trusted | _STANDARD


def _is_installed(value: Any) -> bool:
    """Whether the parts of a function that are not trusted come from installed packages."""
    others = [part for root, part in _origins(value) if root not in _TRUSTED | _STANDARD]
    return all(isinstance(part, FunctionType) and _INSTALLED.search(part.__code__.co_filename) for part in others)


def _origins(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a function with its package, or a callable's class, and then those of everything that it wraps."""
    while value is not None:
        if isinstance(value, functools.partial):
            value = value.func
        elif isinstance(value, MethodType):
            value = value.__func__
        elif isinstance(value, FunctionType):
            yield _root(value.__globals__.get("__name__", "")), value
            value = getattr(value, "__wrapped__", None) or getattr(value, "_torchdynamo_orig_callable", None)
        else:
            if type(value).__module__ != "builtins":  # builtins are functions in C
                yield _root(type(value).__module__), type(value)
            value = getattr(value, "__dict__", {}).get("__wrapped__")
