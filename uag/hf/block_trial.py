"""Which models the short forward of `uag.hf.blocks` serves, by trying.

A model is taken where its parts have the usual names and a trial gives the model's own logits; whatever somebody
hooked, replaced or wrapped keeps its own forward. What a trial found holds as long as every part stays what it was.
"""

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from uag.hf import caches, masks
from uag.hf.blocks import Blocks
from uag.hf.positions import cuts
from uag.hf.undisturbed import kept_random_states
from uag.hf.weights import without_gradients

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks")

_MOST_OFF, _MOST_OFF_IN_HALF = 1e-3, 5e-2
"""Difference from the model's own logits, as a share of the largest, in float32 and in half precision: more would take
models whose forward does something else, less would refuse for rounding."""

_TRIED_IDS = 9

_READ_OFF = ("scaling", "variance_epsilon", "eps", "head_dim", "is_causal", "attention_scaling", "rope_type")
"""Attributes of parts that a trial holds for: with others a model is tried again."""

_CAPTURING = "transformers.utils.output_capturing"
"""Where transformers' own hooks come from. They stay after the first call that asks for hidden states, idle."""

_kept: weakref.WeakKeyDictionary[Any, "tuple[list[Any], Blocks | None]"] = weakref.WeakKeyDictionary()


def blocks_of(model: Any) -> Blocks | None:
    """Return the short forward of a model, None where it has none; the first asking takes three small passes."""
    modules = list(model.modules())
    itself = modules[0]  # a draft may come as a weak proxy, which cannot be a key
    if has_global_hooks() or any(module.training or _is_changed(module) for module in modules):
        _kept.pop(itself, None)
        return None
    parts, found = _kept.get(itself, ([], None))
    now = _parts_of(itself, modules)
    if parts != now:  # new, or somebody put in another part, or set one to something else
        if torch.is_autocast_enabled(itself.get_input_embeddings().weight.device.type):
            return None  # a trial would tell of nothing but the cast
        found = _tried(itself)
        _kept[itself] = now, found
    return found


def _parts_of(model: Any, modules: Sequence[Any]) -> list[Any]:
    """Return all that a trial holds for: every part, what was read off it, and the frequencies of the rotations."""
    config = model.config
    found: list[Any] = [getattr(config, name, None) for name in ("num_hidden_layers", "is_causal")]
    for module in modules:
        known = vars(module)
        found += weakref.ref(module), type(module), tuple(known["_parameters"]), *map(known.get, _READ_OFF)
        found += [buffer.tolist() for name, buffer in module.named_buffers(recurse=False) if name == "inv_freq"]
    return found


def has_global_hooks() -> bool:
    """Whether somebody watches every module of the process."""
    return any(getattr(torch_module, name, None) for name in _GLOBAL_HOOKS)


def _is_changed(module: Any) -> bool:
    """Whether somebody hooked a module or replaced its forward: compiled, offloaded, watched."""
    known = vars(module)
    if "forward" in known and not isinstance(module, nn.Linear):  # products are called as they are
        return True
    hooks = [hook for name in _HOOKS for hook in (known.get(name) or {}).values()]
    return any(getattr(hook, "__module__", "") != _CAPTURING for hook in hooks)


def _tried(model: Any) -> Blocks | None:
    try:
        found = Blocks(model)
        return found if not cuts(model) and _agrees(model, found) else None
    except (AssertionError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
        return None


def _agrees(model: Any, found: Blocks) -> bool:
    size, device = int(model.get_input_embeddings().weight.shape[0]), model.get_input_embeddings().weight.device
    ids = torch.tensor([[(size // 3 + 7 * i) % size for i in range(_TRIED_IDS)]], device=device)
    positions = torch.arange(_TRIED_IDS, device=device)[None]
    own: Sequence[Any] = caches.dynamic_cache(), caches.dynamic_cache()
    with without_gradients(model)(), kept_random_states(device):
        for cache in own:
            model(input_ids=ids[:, :-4], position_ids=positions[:, :-4], past_key_values=cache, use_cache=True)
        expected = model(
            input_ids=ids[:, -4:], position_ids=positions[:, -4:], past_key_values=own[0], use_cache=True
        ).logits.float()
        visible = torch.ones((1, 1, 4, _TRIED_IDS), dtype=torch.bool, device=device).tril(_TRIED_IDS - 4)
        mask = masks.additive(visible, model.dtype)
        got = found(ids[:, -4:], positions[:, -4:], _TRIED_IDS - 1, mask, own[1], 4).float()
    found.off = float((got - expected).abs().max() / expected.abs().max())
    return found.off <= (_MOST_OFF if model.dtype == torch.float32 else _MOST_OFF_IN_HALF)
