"""Lengths at which a model's forward changes, because a pass depends on its last position.

Most models compute each token from its own position, so a block has the same logits as single tokens. Some depend on
the length of the whole pass. For these, a block is exact only if each of its tokens would have been computed in the
same way on its own.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, Literal

from uag.hf.cache import caches
from uag.hf.layers import modules, per_call

_WINDOW_MASKS = {"create_sliding_window_causal_mask", "create_chunked_causal_mask", "create_masks_for_generate"}

_SIGNS = frozenset(("rope_type", "floor_scale", "keep_window_size"))
"""Attributes of modules whose forward may depend on the length."""

_MAX_DEPTH = 3
"""Maximum call depth between a forward and the function that creates its masks, in transformers."""


@dataclass(frozen=True)
class Cut:
    """A length at which the forward changes.

    Attributes:
        at: the last length before the change, in tokens without padding, or in slots.
        kind: "end": no block after it is exact. "switch": only blocks across it are inexact. "count": all blocks are
            exact, but the forward depends on slots after it, so rows must advance in lockstep.
        why: what changes, phrased to follow "the target".
        in_slots: whether `at` counts padding.
    """

    at: int
    kind: Literal["end", "switch", "count"]
    why: str
    in_slots: bool = False


@per_call
def cuts(model: Any) -> tuple[Cut, ...]:
    """Return every length at which a model's forward changes; empty for most models."""
    parts = modules(model)
    unusual = [module for module in parts if not _SIGNS.isdisjoint(vars(module))]
    lengths = {*_rotary(unusual), *_restarts(model), *_counts(unusual), *_windows(model)}
    lengths.update(_topmost(unusual, parts))
    return tuple(sorted(lengths, key=lambda cut: (cut.at, cut.kind, cut.why, cut.in_slots)))


def _rotary(unusual: Iterable[Any]) -> Iterator[Cut]:
    """Rotary factors that depend on the last position of a pass."""
    for module in unusual:
        kinds = vars(module).get("rope_type")
        if kinds is None:
            continue
        parameters = getattr(getattr(module, "config", None), "rope_parameters", None) or {}
        by_layer = kinds.items() if isinstance(kinds, dict) else [(None, kinds)]
        for layer, kind in by_layer:
            if "dynamic" in str(kind):
                # At exactly this length, the factors may still be those of an earlier, longer pass. A module without
                # the attribute is not transformers' own, so nothing is drafted for it.
                at = int(vars(module).get("original_max_seq_len") or 1) - 1
                yield Cut(at, "end", f"recomputes its rotary factors for each length beyond {at}")
            of_layer = parameters if layer is None else parameters.get(layer) or {}
            if kind == "longrope" or of_layer.get("long_mscale") is not None:
                at = int(of_layer.get("original_max_position_embeddings") or 0)
                yield Cut(at, "switch" if at else "end", f"switches its rotary factors beyond length {at}")


def _restarts(model: Any) -> Iterator[Cut]:
    """Models that drop their cache when their rotary factors change (Phi-3)."""
    names = set(_names(_code_of(model.prepare_inputs_for_generation)))
    at = getattr(model.config, "original_max_position_embeddings", None)
    if not isinstance(at, int) or "original_max_position_embeddings" not in names:
        return
    if "next_sequence_length" in names:  # one pass recomputes the whole text
        yield Cut(at, "switch", f"drops its cache at length {at}", in_slots=True)
    else:  # before 5.23, every later pass processes only the last token, at position 0
        yield Cut(at, "end", f"drops its cache beyond length {at}, and continues without one", in_slots=True)


def _counts(unusual: Iterable[Any]) -> Iterator[Cut]:
    """Attention whose temperature depends on the cache slot, not on the position (Llama 4)."""
    for module in unusual:
        known = vars(module)
        if known.get("attn_temperature_tuning") and not known.get("use_rope", True) and "floor_scale" in known:
            at = int(known["floor_scale"]) - 1
            yield Cut(at, "count", f"scales its attention by the cache slot beyond {at}", in_slots=True)


def _windows(model: Any) -> Iterator[Cut]:
    """Models without a sliding-window mask whose cache keeps a window (Moshi, Qwen3-Omni)."""
    sizes = {size for size in map(caches.window, caches.default_layers(model)) if size is not None}
    if sizes and not masks_windows(model):
        at = min(sizes)
        yield Cut(at, "end", f"applies no window mask, although its cache keeps a window of {at}", in_slots=True)


def _topmost(unusual: Iterable[Any], parts: Iterable[Any]) -> Iterator[Cut]:
    """Attention to the top keys only (Doge), whose choice among equal scores depends on the length."""
    for module in unusual:
        num_keys = vars(module).get("keep_window_size")
        if isinstance(num_keys, int):
            yield Cut(num_keys, "end", f"selects its keys by length beyond {num_keys}", in_slots=True)
            if not any("allow_is_causal_skip" in _names(_code_of(other.forward)) for other in parts):
                # Older releases omit the causal mask of a prompt.
                yield Cut(0, "switch", "reads a prompt in both directions", in_slots=True)


def masks_windows(model: Any) -> bool:
    """Whether any module's forward creates a mask for windows or chunks."""
    kinds = {type(module) for module in modules(model)}
    return any(_names_a_mask(kind.forward, kind, _MAX_DEPTH) for kind in kinds)


def _names_a_mask(function: Callable[..., Any], kind: type, depth: int) -> bool:
    function = inspect.unwrap(function)
    names = set(_names(_code_of(function)))
    if names & _WINDOW_MASKS:
        return True
    if depth == 0:
        return False
    namespace = getattr(function, "__globals__", {})
    called = (getattr(kind, name, None) or namespace.get(name) for name in names)
    return any(
        _names_a_mask(inner, kind, depth - 1)
        for inner in called
        if isinstance(inner, FunctionType) and inner.__module__ == function.__module__
    )


def _names(code: CodeType) -> Iterator[str]:
    """Yield every name and string in a function, including its lambdas and keyword arguments."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
        for text in constant if isinstance(constant, tuple) else (constant,):
            if isinstance(text, str):
                yield text


def _code_of(function: Callable[..., Any]) -> CodeType:
    """Return the code of a function without its wrappers, or empty code if it has none."""
    code: CodeType = getattr(inspect.unwrap(function), "__code__", (lambda: None).__code__)
    return code
