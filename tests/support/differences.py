"""Differences between two results of calls: ids, scores, states, caches, and the caller's objects."""

from collections.abc import Iterator
from typing import Any

import torch
from transformers import Cache, GenerationConfig
from transformers.cache_utils import StaticLayer

_LEAST_SCORE = -15.0  # of a token whose probability, beside the first one, is lost in the rounding of float32


def differences(
    one: Any, other: Any, mask: torch.Tensor | None, tolerance: float, path: str = ""
) -> Iterator[tuple[str, str]]:
    """Yield the differences between plain decoding's value and another, and where they are.

    Values at padding, where `mask` is 0, are ignored. Floats may differ by `tolerance`, relative to the largest value
    among them (at least 1).
    """
    if type(one) is not type(other):
        yield path, f"{type(other).__name__}, plainly {type(one).__name__}"
        return
    one, other = _as_data(one), _as_data(other)
    if isinstance(one, torch.Tensor):
        if _modes_differ(one, other, path):
            yield path, "of another gradient or inference mode"
        detail = _tensors_differ(*_comparable(one, other, path, tolerance), mask, tolerance)
        if detail:
            yield path, detail
    elif isinstance(one, dict) and list(one) == list(other):
        for name in one:
            yield from differences(one[name], other[name], mask, tolerance, f"{path}.{name}")
    elif isinstance(one, (list, tuple)) and len(one) == len(other):
        for place, pair in enumerate(zip(one, other, strict=True)):
            yield from differences(*pair, mask, tolerance, f"{path}[{place}]")
    elif isinstance(one, (int, float, str, torch.dtype, dict, list, tuple)) and one != other:
        yield path, f"{other!r:.200}, plainly {one!r:.200}"


def _comparable(
    one: torch.Tensor, other: torch.Tensor, path: str, tolerance: float
) -> tuple[torch.Tensor, torch.Tensor]:
    if "hidden_states" in path and one.dim() == other.dim() == 4:  # Gemma 3n keeps several streams: [4, rows, ...]
        return one.transpose(0, 1), other.transpose(0, 1)
    if "scores" not in path:
        return one, other
    # SynthID lets an improbable token pass, or not, by the rounding of the others.
    one, other = (each.where(each.isinf(), each.clamp(min=_LEAST_SCORE)) for each in (one, other))
    return _without_near_ties(one, other, tolerance) if one.shape == other.shape else (one, other)


def _as_data(value: Any) -> Any:
    if isinstance(value, Cache):
        return _contents(value)
    if isinstance(value, GenerationConfig):
        return repr(value.to_dict())
    return vars(value) if type(value).__module__.startswith("tests.") else value


def _modes_differ(one: torch.Tensor, other: torch.Tensor, path: str) -> bool:
    # A convolution's state, which plain decoding changes in place, is a new tensor after a rollback.
    is_state = ".cache" in path or ".past_key_values" in path
    return one.requires_grad != other.requires_grad or (one.is_inference() != other.is_inference() and not is_state)


def _without_near_ties(one: torch.Tensor, other: torch.Tensor, tolerance: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Exclude tokens that pass a filter by rounding: in one tensor only, with a score as low as the lowest there."""
    is_elsewhere = one.isneginf() & other.isfinite() | one.isfinite() & other.isneginf()
    lowest = [scores.where(scores.isfinite(), torch.inf).amin(-1, keepdim=True) for scores in (one, other)]
    for scores in (one, other):
        is_elsewhere &= ~scores.isfinite() | (scores <= torch.minimum(*lowest) + tolerance)
    return one.masked_fill(is_elsewhere, -torch.inf), other.masked_fill(is_elsewhere, -torch.inf)


def _tensors_differ(one: torch.Tensor, other: torch.Tensor, mask: torch.Tensor | None, tolerance: float) -> str:
    if one.shape != other.shape or one.dtype != other.dtype:
        return f"{tuple(other.shape)} {other.dtype}, plainly {tuple(one.shape)} {one.dtype}"
    if not one.is_floating_point():
        return "" if torch.equal(one, other) else "other values"
    place = one.dim() - 2  # of [rows, width, size] and [rows, heads, width, size]
    if mask is not None and place in (1, 2) and one.shape[place] >= mask.shape[1] > 1:
        rows = mask.repeat_interleave(max(one.shape[0] // mask.shape[0], 1), dim=0).bool()
        seen = torch.nn.functional.pad(rows, (0, one.shape[place] - mask.shape[1]), value=True)
        seen = seen.view(seen.shape[0], *[1] * (place - 1), seen.shape[1], 1)
        one, other = one.where(seen, 0.0), other.where(seen, 0.0)
    if tolerance == float("inf"):  # then a filter of scores may pass other tokens, too
        return ""
    if not torch.equal(one.isfinite(), other.isfinite()):
        return "infinite or not a number elsewhere"
    one, other = one.nan_to_num(0.0, 0.0, 0.0), other.nan_to_num(0.0, 0.0, 0.0)
    worst = float((one - other).abs().max()) if one.numel() else 0.0
    return "" if worst <= tolerance * max(1.0, float(one.abs().max()) if one.numel() else 0.0) else f"by {worst:.2e}"


def _contents(cache: Any) -> list[Any]:
    if hasattr(cache, "self_attention_cache"):
        return [*_contents(cache.self_attention_cache), *_contents(cache.cross_attention_cache)]
    names = ("keys", "values", "conv_states", "recurrent_states")
    layers = [[getattr(layer, name, None) for name in names] for layer in cache.layers]
    for layer, tensors in zip(cache.layers, layers, strict=True):
        if isinstance(layer, StaticLayer):  # what lies behind the tokens is never read
            num_slots = min(int(layer.get_seq_length()), layer.max_cache_len) if layer.is_initialized else 0
            tensors[:2] = [None if tensor is None else tensor[:, :, :num_slots] for tensor in tensors[:2]]
    return layers
