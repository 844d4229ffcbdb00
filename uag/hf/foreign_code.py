"""Detects code that changes what a model computes, or observes its passes.

With transformers' own forwards, a block of candidates has the same logits as single tokens; uag's tests check this
class by class. Foreign code around a forward may depend on the width of a pass, on the number of passes before it, or
on the row of the batch, and no trial can rule that out. So this module checks for such code at every call.
"""

import functools
import operator
import sys
from collections.abc import Iterable, Iterator
from types import FunctionType, MethodType
from typing import Any

import torch
from torch.nn.modules import module as torch_module
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from transformers import cache_utils
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from uag.hf.inspection import modules, per_call

_TRUSTED = frozenset(("torch", "transformers", "accelerate", "kernels", "uag"))
"""Packages whose hooks and instance attributes only move, split or normalize tensors."""

_TESTED = _TRUSTED | {"peft"}
"""Packages whose modules the tests cover. Models with modules of other packages run a trial (`uag.hf.classes`)."""

_IMPORTED = frozenset(
    (
        *("bitsandbytes", "causal_conv1d", "deepspeed", "detectron2", "einops", "fla", "flash_attn", "huggingface_hub"),
        *("mamba_ssm", "mambapy", "natten", "numpy", "packaging", "peft", "safetensors", "scipy", "timm", "tokenizers"),
        *("torchaudio", "torchvision", "tqdm", "triton", "typing_extensions", "xformers", "xlstm"),
    )
)
"""Packages that transformers' modeling files import functions from."""

_STANDARD = frozenset(sys.stdlib_module_names) - {"unittest"}

_NAMESPACES = (
    "torch",
    "torch.nn.functional",
    "transformers.activations",
    "transformers.cache_utils",
    "transformers.integrations.sdpa_attention",
    "transformers.masking_utils",
    "transformers.modeling_rope_utils",
    "transformers.pytorch_utils",
)
"""Modules whose functions most forwards call; a model's own modeling file is added."""

_OUTSIDE_PASSES = frozenset(
    (
        *("__format__", "__getstate__", "__repr__", "__str__", "_loss_function", "compile", "cpu", "cuda", "eval"),
        *("extra_repr", "float", "generate", "half", "load", "loss_function", "manual_seed", "push_to_hub", "save"),
        *("save_pretrained", "seed", "set_default_device", "to", "train"),
    )
)
"""Functions that users and libraries may replace, because no pass of a target calls them."""

_MIXINS = tuple(f"transformers.{name}" for name in ("modeling_utils", "generation.", "integrations.", "utils"))
"""Modules with the base classes of models. Of their methods, a pass calls only `_PASS_METHODS`."""

_PASS_METHODS = frozenset(
    ("forward", "__call__", "prepare_inputs_for_generation", "_update_model_kwargs_for_generation", "_prefill")
)

_OWN_ATTENTION = frozenset(
    ("eager", "flash_attention_2", "flash_attention_3", "flash_attention_4", "flex_attention", "sdpa")
)
"""Names under which transformers registers its own attention."""

_inert: set[type] = set()
"""Cached types of attributes that are not callable, or are modules or classes."""

_REPLACING = frozenset(("forward", "_call_impl", "_hf_hook", "prepare_inputs_for_generation"))
"""Attributes of an instance, of any type, that run instead of its class's functions or around them.

PEFT's preparation, for prompt, prefix and P-tuning, prepends virtual tokens in the first pass and then expects single
tokens.
"""

_clean: dict[Any, tuple[Any, ...]] = {}
"""The values of each torch or transformers namespace that was found clean; compared by identity."""


@per_call
def changes(model: Any) -> str:
    """Return a description of foreign code in a model's passes, or an empty string.

    Detects per-module and global hooks; functions replaced on instances, on classes, or in the modules of torch and
    transformers; parametrizations; and active function and dispatch modes. Code from torch, transformers, accelerate,
    PEFT and uag is ignored. So are classes of other packages, which `uag.hf.classes` reports as untested.

    Takes about a millisecond for 500 modules.
    """
    parts = modules(model)
    change = _modes() or _global_hooks() or next(filter(None, map(_module_change, parts)), "")
    return change or _mixed_causality(model, parts) or _library_change(model, parts)


def cache_change(cache: Any) -> str:
    """Return a description of foreign code in a cache, or an empty string if it is transformers' own."""
    kind = type(cache)
    if kind.__module__.partition(".")[0] not in _TRUSTED:
        return f"the class {kind.__name__}"
    inner = getattr(cache, "self_attention_cache", None), getattr(cache, "cross_attention_cache", None)
    for part in (cache, *inner, *getattr(inner[0] or cache, "layers", ())):
        for name, value in list(getattr(part, "__dict__", {}).items()):
            if not _is_own_function(value, ""):
                return f"{type(part).__name__}.{name}"
    return ""


# ---------------------------------------------------------------------- process-wide changes


def _modes() -> str:
    functions = (torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack()))
    for mode in (*functions, *_get_current_dispatch_mode_stack()):
        if _root(type(mode).__module__) != "torch":
            return f"the active mode {type(mode).__name__}"
    return ""


def _global_hooks() -> str:
    for name in ("_global_forward_hooks", "_global_forward_pre_hooks"):
        for hook in getattr(torch_module, name).values():
            if not _is_trusted(hook):
                return "a forward hook on all modules"
    return ""


# ---------------------------------------------------------------------- changes to one module


def _module_change(module: Any) -> str:
    known, name = vars(module), type(module).__name__
    for hook in (*known["_forward_hooks"].values(), *known["_forward_pre_hooks"].values()):
        if not _is_trusted(hook):
            return f"a forward hook on {name}"
    if "parametrizations" in known["_modules"]:
        parts = (part for parts in module.parametrizations.values() for part in parts)
        if not all(_root(type(part).__module__) in _TRUSTED for part in parts):
            return f"a parametrization of {name}"
    if _inert.issuperset(map(type, known.values())) and _REPLACING.isdisjoint(known):
        return ""  # the usual case, without a loop in Python over the attributes of hundreds of modules
    root = _root(type(module).__module__)
    for attribute, value in list(known.items()):  # a copy: another thread may place fast products
        if attribute in _REPLACING:
            is_own = _is_trusted(value)
        else:
            is_own = attribute in _OUTSIDE_PASSES or root not in _TESTED or _is_own_function(value, root)
        if not is_own:
            return f"{attribute} of {name}"
    return ""


def _mixed_causality(model: Any, parts: Iterable[Any]) -> str:
    """Describe a layer that was switched to bidirectional attention while others of its class are causal."""
    causal: dict[tuple[str, type], bool] = {}
    for parent in () if getattr(getattr(model, "config", None), "is_encoder_decoder", False) else parts:
        for name, module in parent._modules.items():
            value = getattr(module, "__dict__", {}).get("is_causal")
            if value is not None and causal.setdefault((name, type(module)), value) != value:
                return f"is_causal of a {type(module).__name__}"
    return ""


# ---------------------------------------------------------------------- changes to libraries


def _library_change(model: Any, parts: Iterable[Any]) -> str:
    kinds = dict.fromkeys(map(type, parts))
    files = dict.fromkeys((*_NAMESPACES, *(kind.__module__ for kind in kinds)))
    for name in files:
        file = sys.modules.get(name)
        if file is not None and _root(name) in _TRUSTED and (change := _namespace_change(file)):
            return change
    owners = (owner for kind in kinds for owner in kind.__mro__[:-1])
    for owner in dict.fromkeys((torch.Tensor, *_cache_classes(), *owners)):
        if change := _namespace_change(owner):
            return change
    config = getattr(getattr(model, "config", None), "get_text_config", None)  # not every module has one
    attention = None if config is None else getattr(config(decoder=True), "_attn_implementation", None)
    is_changed = attention in _OWN_ATTENTION and _is_foreign_attention(attention)
    return f"the attention {attention!r}" if is_changed else ""


def is_attention_of_others(name: str | None) -> bool:
    """Return whether an attention implementation was registered under a new name by code outside transformers."""
    return name not in _OWN_ATTENTION and _is_foreign_attention(name)


def _is_foreign_attention(name: str | None) -> bool:
    functions = (registry.get(name) for registry in (ALL_ATTENTION_FUNCTIONS, ALL_MASK_ATTENTION_FUNCTIONS))
    return not all(function is None or _is_trusted(function) for function in functions)


def _cache_classes() -> Iterator[type]:
    for value in vars(cache_utils).values():
        if isinstance(value, type) and value.__module__ == cache_utils.__name__:
            yield value


def _namespace_change(owner: Any) -> str:
    """Return the name of a function in a module or class that is not from its package or the packages it imports."""
    content = vars(owner)
    values = tuple(content.values())
    clean = _clean.get(owner)
    if clean is not None and len(clean) == len(values) and all(map(operator.is_, clean, values)):
        return ""
    root = _root(owner.__module__ if isinstance(owner, type) else owner.__name__)
    if root not in _TESTED:
        return ""
    is_mixin = isinstance(owner, type) and owner.__module__.startswith(_MIXINS)
    for name, value in list(content.items()):
        if name in _OUTSIDE_PASSES or (is_mixin and name not in _PASS_METHODS):
            continue
        if owner is torch.Tensor and not hasattr(torch._C.TensorBase, name):
            continue  # torch has no such method, so no pass calls it
        if not _is_own_function(value, root):
            return f"{owner.__name__}.{name}"
    if root in _TRUSTED:  # classes of other packages may be temporary, so they are not cached
        _clean[owner] = values
    return ""


# ---------------------------------------------------------------------- origin of a function


def is_of_tested_package(kind: type) -> bool:
    """Return whether the tests of uag cover the layers of a class's package."""
    return _root(kind.__module__) in _TESTED


def _root(module_name: Any) -> str:
    return str(module_name).partition(".")[0]


def _is_trusted(value: Any) -> bool:
    """Whether a callable and everything that it wraps come from trusted packages."""
    roots = {_root(origin) for origin in _origins(value)}
    return bool(roots & _TRUSTED) and roots <= _TRUSTED | _STANDARD


def _is_own_function(value: Any, root: str) -> bool:
    """Whether a value is not a function, or comes from this package or one that transformers imports."""
    kind = type(value)
    if kind in _inert:
        return True
    if issubclass(kind, type | torch.nn.Module) or not (callable(value) or issubclass(kind, classmethod | property)):
        _inert.add(kind)
        return True
    return all(_root(origin) in _TRUSTED | _IMPORTED | _STANDARD | {root} for origin in _origins(value))


def _origins(value: Any) -> Iterator[Any]:
    """Yield the modules that define a callable and everything that it wraps."""
    while value is not None:
        if isinstance(value, functools.partial):
            value = value.func
        elif isinstance(value, MethodType | staticmethod | classmethod):
            value = value.__func__
        elif isinstance(value, property):
            value = value.fget
        elif isinstance(value, FunctionType):
            yield value.__globals__.get("__name__", "")
            value = getattr(value, "__wrapped__", None) or getattr(value, "_torchdynamo_orig_callable", None)
        else:
            if type(value).__module__ != "builtins":  # builtins are functions in C
                yield type(value).__module__
            value = getattr(value, "__dict__", {}).get("__wrapped__")
