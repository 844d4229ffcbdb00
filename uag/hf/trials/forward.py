"""Which drafts the short forward of `uag.hf.llama.forward` serves, by trying.

A model is taken where its parts have the usual names and a trial gives the model's own logits. A model with a hook, or
with a forward that someone replaced or wrapped, keeps its own forward. The answer holds while every part stays what it
was.
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
"""Difference from the model's own logits, as a share of the largest, in float32 and in half precision. More would take
models whose forward does something else, less would refuse for rounding."""

_NUM_IDS = 9

_READ = ("scaling", "variance_epsilon", "eps", "head_dim", "is_causal", "attention_scaling", "rope_type")
"""Attributes of parts on which the short forward depends: with others a model is tried again."""

_CAPTURING = "transformers.utils.output_capturing"
"""Where transformers' own hooks come from. They stay after the first call that asks for hidden states, idle."""


def blocks_of(model: Any) -> Blocks | None:
    """Return the short forward of a model, None where it has none; three small passes, once."""
    parts = modules(model)
    if any(module.training or _is_surrounded(module) for module in parts) or own.changes(model):
        return None
    return once(model, "forward", lambda: _tried(model), lambda _: None, key=_parts_of(model, parts))


def _parts_of(model: Any, parts: Sequence[Any]) -> list[Any]:
    """Return all that the answer holds for: every part, what was read off it, and the frequencies of the rotations."""
    found: list[Any] = [getattr(model.config, name, None) for name in ("num_hidden_layers", "is_causal")]
    for module in parts:
        known = vars(module)
        found += weakref.ref(module), type(module), tuple(known["_parameters"]), *map(known.get, _READ)
        found += [buffer.tolist() for name, buffer in module.named_buffers(recurse=False) if name == "inv_freq"]
    return found


def _is_surrounded(module: Any) -> bool:
    """Return whether something runs around a module's forward, or in its place: compiled, offloaded, hooked."""
    known = vars(module)
    if "forward" in known and not isinstance(module, nn.Linear):  # products are called as they are
        return True
    hooks = [hook for name in _HOOKS for hook in (known.get(name) or {}).values()]
    return any(getattr(hook, "__module__", "") != _CAPTURING for hook in hooks)


def _tried(model: Any) -> Blocks | None:
    found = Blocks(model)
    return found if not cuts(model) and _agrees(model, found) else None


def _agrees(model: Any, found: Blocks) -> bool:
    weight = model.get_input_embeddings().weight
    size, device = int(weight.shape[0]), weight.device
    ids = torch.tensor([[(size // 3 + 7 * i) % size for i in range(_NUM_IDS)]], device=device)
    positions = torch.arange(_NUM_IDS, device=device)[None]
    ours: Sequence[Any] = caches.dynamic_cache(), caches.dynamic_cache()
    with without_gradients(model)():
        for cache in ours:
            model(input_ids=ids[:, :-4], position_ids=positions[:, :-4], past_key_values=cache, use_cache=True)
        expected = model(
            input_ids=ids[:, -4:], position_ids=positions[:, -4:], past_key_values=ours[0], use_cache=True
        ).logits.float()
        visible = torch.ones((1, 1, 4, _NUM_IDS), dtype=torch.bool, device=device).tril(_NUM_IDS - 4)
        mask = masks.additive(visible, model.dtype)
        got = found(ids[:, -4:], positions[:, -4:], _NUM_IDS - 1, mask, ours[1], 4).float()
    difference = float((got - expected).abs().max() / expected.abs().max())
    return difference <= (_MAX_DIFFERENCE if model.dtype == torch.float32 else _MAX_DIFFERENCE_IN_HALF)
