"""The trial that decides which drafts use the short forward of `uag.hf.llama.forward`.

A model uses it if its submodules have the usual names and the trial reproduces the model's logits. Models with hooks,
or with a replaced or wrapped forward, keep their own forward. If any submodule is replaced, the trial runs again.
"""

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from uag.hf import masks, own
from uag.hf.cache import caches
from uag.hf.layers import modules
from uag.hf.llama.forward import Blocks
from uag.hf.positions import cuts
from uag.hf.trials.once import once
from uag.hf.weights import without_gradients

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")

_MAX_DIFFERENCE, _MAX_DIFFERENCE_IN_HALF = 1e-3, 5e-2
"""Maximum difference from the model's logits, relative to the largest logit, in float32 and in half precision.

Increase to accept more rounding; decrease to detect smaller differences between the forwards.
"""

_NUM_IDS = 9

_READ = ("scaling", "variance_epsilon", "eps", "head_dim", "is_causal", "attention_scaling", "rope_type")
"""Attributes that the short forward depends on: if one changes, the trial runs again."""

_CAPTURING = "transformers.utils.output_capturing"
"""Module of transformers' hooks that remain, inactive, after the first call that requests hidden states."""


def blocks_of(model: Any) -> Blocks | None:
    """Return the short forward of a model, or None. Runs three small passes, once."""
    parts = modules(model)
    if any(module.training or _is_surrounded(module) for module in parts) or own.changes(model):
        return None
    return once(model, "forward", lambda: _tried(model), lambda _: None, key=_parts_of(model, parts))


def _parts_of(model: Any, parts: Sequence[Any]) -> list[Any]:
    """Return what the trial's result depends on: the modules, their attributes in `_READ`, and rotary frequencies."""
    key: list[Any] = [getattr(model.config, name, None) for name in ("num_hidden_layers", "is_causal")]
    for module in parts:
        known = vars(module)
        key += weakref.ref(module), type(module), tuple(known["_parameters"]), *map(known.get, _READ)
        key += [buffer.tolist() for name, buffer in module.named_buffers(recurse=False) if name == "inv_freq"]
    return key


def _is_surrounded(module: Any) -> bool:
    """Return whether a module's forward was replaced or wrapped (compiled, offloaded, hooked)."""
    known = vars(module)
    if "forward" in known and not isinstance(module, nn.Linear):  # fast products may be in place
        return True
    hooks = [hook for name in _HOOKS for hook in (known.get(name) or {}).values()]
    return any(getattr(hook, "__module__", "") != _CAPTURING for hook in hooks)


def _tried(model: Any) -> Blocks | None:
    blocks = Blocks(model)
    return blocks if not cuts(model) and _agrees(model, blocks) else None


def _agrees(model: Any, blocks: Blocks) -> bool:
    weight = model.get_input_embeddings().weight
    size, device = int(weight.shape[0]), weight.device
    ids = torch.tensor([[(size // 3 + 7 * i) % size for i in range(_NUM_IDS)]], device=device)
    positions = torch.arange(_NUM_IDS, device=device)[None]
    cache, short_cache = caches.dynamic_cache(), caches.dynamic_cache()
    with without_gradients(model)():
        for empty in (cache, short_cache):
            model(input_ids=ids[:, :-4], position_ids=positions[:, :-4], past_key_values=empty, use_cache=True)
        expected = model(
            input_ids=ids[:, -4:], position_ids=positions[:, -4:], past_key_values=cache, use_cache=True
        ).logits.float()
        visible = torch.ones((1, 1, 4, _NUM_IDS), dtype=torch.bool, device=device).tril(_NUM_IDS - 4)
        mask = masks.additive(visible, model.dtype)
        actual = blocks(ids[:, -4:], positions[:, -4:], mask, short_cache, 4).float()
    difference = float((actual - expected).abs().max() / expected.abs().max())
    return difference <= (_MAX_DIFFERENCE if model.dtype == torch.float32 else _MAX_DIFFERENCE_IN_HALF)
