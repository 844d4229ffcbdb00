"""Lengths at which a model's forward changes: what one pass computes from the last of its positions.

Most models compute each token from its own position, so that a block gives what one token after the other gives. Some
look at the length of the whole pass. Their blocks are right only where every token of the block, alone, would have been
computed in the same way.
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
"""Attributes of the modules that are looked at more closely."""

_MAX_DEPTH = 3
"""Calls that are followed from a forward to the function that makes its masks; none of transformers' is deeper."""


@dataclass(frozen=True)
class Cut:
    """A length at which the forward changes.

    Attributes:
        at: the longest pass of the first kind, in tokens behind padding, or in slots.
        kind: "end": behind it, no block is right. "switch": behind it blocks are right again, across it they are not.
            "count": blocks are right everywhere, but behind it slots are counted, so rows must go in step.
        why: what changes, to stand behind "the target".
        in_slots: whether `at` counts padding, too.
    """

    at: int
    kind: Literal["end", "switch", "count"]
    why: str
    in_slots: bool = False


@per_call
def cuts(model: Any) -> tuple[Cut, ...]:
    """Return every length at which a model's forward changes; empty for most models."""
    everything = modules(model)
    odd = [module for module in everything if not _SIGNS.isdisjoint(vars(module))]
    found = {*_rotary(odd), *_restarts(model), *_counts(odd), *_windows(model), *_topmost(odd, everything)}
    return tuple(sorted(found, key=lambda cut: (cut.at, cut.kind, cut.why, cut.in_slots)))


def _rotary(odd: Iterable[Any]) -> Iterator[Cut]:
    """Rotary factors that follow the last position of a pass."""
    for module in odd:
        kinds = vars(module).get("rope_type")
        if kinds is None:
            continue
        parameters = getattr(getattr(module, "config", None), "rope_parameters", None) or {}
        by_layer = kinds.items() if isinstance(kinds, dict) else [(None, kinds)]
        for layer, kind in by_layer:
            if "dynamic" in str(kind):
                # At the length itself an earlier, longer pass may still have left its factors. A module that does not
                # tell its length is someone else's: nothing is drafted for it.
                at = int(vars(module).get("original_max_seq_len") or 1) - 1
                yield Cut(at, "end", f"computes its rotary factors anew for every length beyond {at}")
            own = parameters if layer is None else parameters.get(layer) or {}
            if kind == "longrope" or own.get("long_mscale") is not None:
                at = int(own.get("original_max_position_embeddings") or 0)
                yield Cut(at, "switch" if at else "end", f"takes other rotary factors for lengths beyond {at}")


def _restarts(model: Any) -> Iterator[Cut]:
    """Models that drop their cache where their rotary factors change (Phi-3)."""
    names = set(_names(_code_of(model.prepare_inputs_for_generation)))
    at = getattr(model.config, "original_max_position_embeddings", None)
    if not isinstance(at, int) or "original_max_position_embeddings" not in names:
        return
    if "next_sequence_length" in names:  # the prompt is read anew, by one pass
        yield Cut(at, "switch", f"drops its cache at length {at}", in_slots=True)
    else:  # before 5.23 nothing but the last token is: every later pass begins at nought
        yield Cut(at, "end", f"drops its cache beyond length {at}, and goes on without one", in_slots=True)


def _counts(odd: Iterable[Any]) -> Iterator[Cut]:
    """Attention whose temperature follows the slot in the cache, not the position (Llama 4)."""
    for module in odd:
        known = vars(module)
        if known.get("attn_temperature_tuning") and not known.get("use_rope", True) and "floor_scale" in known:
            at = int(known["floor_scale"]) - 1
            yield Cut(at, "count", f"scales its attention by slots beyond {at}", in_slots=True)


def _windows(model: Any) -> Iterator[Cut]:
    """Caches that keep a window that nothing masks (Moshi, Qwen3-Omni)."""
    sizes = {size for size in map(caches.window, caches.default_layers(model)) if size is not None}
    if sizes and not masks_windows(model):
        at = min(sizes)
        yield Cut(at, "end", f"masks no window, while its cache keeps one of {at}", in_slots=True)


def _topmost(odd: Iterable[Any], everything: Iterable[Any]) -> Iterator[Cut]:
    """Attention to the topmost of all keys (Doge): ties between scores are broken by the length."""
    for module in odd:
        kept = vars(module).get("keep_window_size")
        if isinstance(kept, int):
            yield Cut(kept, "end", f"chooses what it attends to by the length beyond {kept}", in_slots=True)
            if not any("allow_is_causal_skip" in _names(_code_of(other.forward)) for other in everything):
                # Older releases leave out the causal mask of a prompt, and then add one of their own to nothing.
                yield Cut(0, "switch", "reads a prompt in both directions", in_slots=True)


def masks_windows(model: Any) -> bool:
    """Whether some module's forward makes a mask for windows, or for chunks."""
    kinds = {type(module) for module in modules(model)}
    return any(_names_a_mask(kind.forward, kind, _MAX_DEPTH) for kind in kinds)


def _names_a_mask(function: Callable[..., Any], kind: type, depth: int) -> bool:
    function = inspect.unwrap(function)
    names = set(_names(_code_of(function)))
    if names & _WINDOW_MASKS:
        return True
    if depth == 0:
        return False
    known = getattr(function, "__globals__", {})
    called = (getattr(kind, name, None) or known.get(name) for name in names)
    return any(
        _names_a_mask(inner, kind, depth - 1)
        for inner in called
        if isinstance(inner, FunctionType) and inner.__module__ == function.__module__
    )


def _names(code: CodeType) -> Iterator[str]:
    """Every name and text in a function, those in its lambdas and of its keyword arguments included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
        for text in constant if isinstance(constant, tuple) else (constant,):
            if isinstance(text, str):
                yield text


def _code_of(function: Callable[..., Any]) -> CodeType:
    """Return a function's own code, whatever wraps it; that of a function that names nothing where it has none."""
    code: CodeType = getattr(inspect.unwrap(function), "__code__", (lambda: None).__code__)
    return code
