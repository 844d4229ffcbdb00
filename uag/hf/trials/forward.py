"""The trial that decides which drafts use the short forward of `uag.hf.llama.forward`.

A model uses it if its submodules have the usual names and the trial reproduces the model's logits. Models with hooks,
or with a replaced or wrapped forward, keep their own forward. If any submodule is replaced, the trial runs again.
"""

import weakref
from typing import Any

import torch
from torch import nn

from uag.hf import masks, models, own
from uag.hf.cache import caches
from uag.hf.layers import has_hooks, modules
from uag.hf.llama.forward import Blocks
from uag.hf.positions import cuts
from uag.hf.trials.once import once
from uag.hf.weights import without_gradients
from uag.hf.wrapped import device_of

_MAX_DIFFERENCE, _MAX_DIFFERENCE_IN_HALF = 1e-3, 5e-2
"""Maximum difference from the model's logits, relative to the largest logit, in float32 and in half precision.

Increase to accept more rounding; decrease to detect smaller differences between the forwards.
"""

_NUM_IDS = 9


def blocks_of(model: Any) -> Blocks | None:
    """Return the short forward of a model, or None. Runs three small passes, once."""
    parts = modules(model)
    if any(module.training or _is_surrounded(module) for module in parts) or own.changes(model):
        return None
    return once(model, "forward", lambda: _tried(model), lambda _: None, key=[weakref.ref(part) for part in parts])


def _is_surrounded(module: Any) -> bool:
    """Return whether a module's forward was replaced or wrapped (compiled, offloaded, hooked)."""
    is_replaced = "forward" in vars(module) and not isinstance(module, nn.Linear)  # fast products may be in place
    return is_replaced or has_hooks(module)


def _tried(model: Any) -> Blocks | None:
    blocks = Blocks(model)
    return blocks if not cuts(model) and _agrees(model, blocks) else None


def _agrees(model: Any, blocks: Blocks) -> bool:
    device = device_of(model)
    ids = torch.tensor([models.ordinary_ids(model, _NUM_IDS)], device=device)
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
