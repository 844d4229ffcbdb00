"""Lengths at which a model's forward changes, because a pass depends on its last position.

From such a length on, a block may have other logits than single tokens, so nothing is drafted.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from uag.hf.foreign_code import of_others
from uag.hf.inspection import modules, per_call

_DROP_THEIR_CACHE = ("phi3", "phi4_multimodal", "phimoe")  # when their rotary factors change

_LENGTH = re.compile(r".*(position|length|window|chunk_size|block_size|context|ctx|seq_len|floor_scale).*")
_NO_LENGTH = re.compile(
    r"(mask_.*|.*_pattern|num|min|max_length|chunk_size_feed|.*token_id|.*_type|.*_offset|.*_layers).*"
)
"""Names in a configuration that are lengths of a text, and those among them that are not."""

_LONGEST = 1 << 24  # numbers above this one stand for "no limit" in configurations


class Cut(NamedTuple):
    """A length at which the forward changes: the last one before, and why, phrased to follow "the target"."""

    at: int
    why: str


@per_call
def cuts(model: Any) -> tuple[Cut, ...]:
    """Return every length at which a model's forward changes, or may change; empty for most models."""
    of_modules = {cut for module in modules(model) for cut in (*_rotary(module), *_sparse(module), *_masks(module))}
    return tuple(sorted(of_modules | {*_restarts(model), *_untried(model)}))


def _rotary(module: Any) -> Iterator[Cut]:
    """Rotary factors that depend on the last position of a pass."""
    kinds = vars(module).get("rope_type")
    if kinds is None:
        return
    parameters = getattr(getattr(module, "config", None), "rope_parameters", None) or {}
    by_layer = kinds.items() if isinstance(kinds, dict) else [(None, kinds)]
    for layer, kind in by_layer:
        if "dynamic" in str(kind):
            # At exactly this length, the factors may still be those of an earlier, longer pass. A module without the
            # attribute is not transformers' own, so nothing is drafted for it.
            at = int(vars(module).get("original_max_seq_len") or 1) - 1
            yield Cut(at, f"recomputes its rotary factors for each length beyond {at}")
        of_layer = parameters if layer is None else parameters.get(layer) or {}
        if kind == "longrope" or of_layer.get("long_mscale") is not None:
            at = int(of_layer.get("original_max_position_embeddings") or 0)
            yield Cut(at, f"switches its rotary factors beyond length {at}")


def _sparse(module: Any) -> Iterator[Cut]:
    """Attention to the keys with the highest scores (DeepSeek Sparse Attention): ties depend on the number of keys."""
    at = vars(module).get("index_topk")
    if isinstance(at, int):
        yield Cut(at, f"selects its keys by rank beyond length {at}")


def _masks(module: Any) -> Iterator[Cut]:
    """Attention with a causal mask of its own, [1, 1, slots, slots], which counts the slots of a cache (GPT-Neo)."""
    mask = module._buffers.get("bias")
    if mask is not None and mask.dim() == 4:
        yield Cut(mask.shape[-1], f"masks the first {mask.shape[-1]} slots of its cache only")


def masks_by_slot(parts: Iterable[Any]) -> bool:
    """Whether any attention takes the last slots of a cache, which are empty in a static one, for those of a pass."""
    return any(True for part in parts for _ in _masks(part))


def _restarts(model: Any) -> Iterator[Cut]:
    """Models that drop their cache when their rotary factors change (Phi-3)."""
    model_type, at = model.config.model_type, getattr(model.config, "original_max_position_embeddings", None)
    if model_type in _DROP_THEIR_CACHE and isinstance(at, int):
        yield Cut(at, f"drops its cache beyond length {at}")


def _untried(model: Any) -> Iterator[Cut]:
    """The shortest length in the configuration of a model of others, which may do anything at such a length."""
    if of_others(model):
        lengths = _lengths(model.config.get_text_config(decoder=True).to_dict())
        at = min(lengths, default=_LONGEST) - 1
        yield Cut(at, f"has no trial beyond length {at}")


def _lengths(values: dict[Any, Any]) -> Iterator[int]:
    for key, value in values.items():
        name = str(key)
        if isinstance(value, dict):
            yield from _lengths(value)
        elif _LENGTH.fullmatch(name) and not _NO_LENGTH.fullmatch(name) and type(value) in (int, float):
            yield from [int(value)] if 1 < value <= _LONGEST and value == int(value) else []


def scales_by_slot(parts: Iterable[Any]) -> bool:
    """Whether the temperature of any attention depends on the cache slot, not on the position (Llama 4)."""
    known = map(vars, parts)
    return any(of.get("attn_temperature_tuning") and not of.get("use_rope", True) for of in known)
