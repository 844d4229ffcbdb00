"""Weights as models keep them, quantized ones too, and what a quantization makes of several tokens at once."""

import math
import weakref
from typing import Any

import torch

_MOST_ROUNDING = 1e-4
"""A token may come out of a layer differently by this share beside others, or by its type's own precision: sums in
another order differ by less, one scale for all tokens by more than ten times as much. Higher would let one through."""

_OUTLIER = 48.7
"""How much larger the other tokens are: far enough that a common scale leaves little of the first, and no power of two,
which a scale of 8 bit floats would not notice."""

_PLAIN = (torch.nn.Parameter, torch.Tensor)


def weight_of(module: Any) -> Any:
    """Return a module's weight; None where it has none. Dynamically quantized modules have a method of that name."""
    weight = getattr(module, "weight", None)
    return weight if weight is None or isinstance(weight, torch.Tensor) else weight()


def num_outputs(module: Any) -> int | None:
    """Return the outputs of a linear module, however its weight is packed; None where nothing tells."""
    weight, size = weight_of(module), getattr(module, "out_features", None)
    inputs = getattr(module, "in_features", None)
    if weight is not None and weight.dim() == 2 and (inputs is None or weight.shape[1] == inputs):
        return int(weight.shape[0])
    return size if isinstance(size, int) else None


def num_weights(model: Any) -> int:
    """Count a model's weights, those too that quantized layers hold as something else than parameters."""
    packed = [m for m in _linear_modules(model) if next(m.parameters(), None) is None]
    return int(model.num_parameters()) + sum(module.in_features * module.out_features for module in packed)


def _linear_modules(model: Any) -> list[Any]:
    names = "in_features", "out_features"
    return [m for m in model.modules() if all(isinstance(getattr(m, name, None), int) for name in names)]


_tried: weakref.WeakKeyDictionary[Any, tuple[tuple[type, ...], str]] = weakref.WeakKeyDictionary()


def common_scale(model: Any) -> str:
    """Name the kind of layer, if any, in which a token's result depends on the others of its pass; empty for none.

    Layers that quantize their input may take one scale for all its tokens, so that a block of candidates gives other
    logits than one token after the other. Every layer that is not a plain one is tried once per model: a token alone,
    and the same token before larger ones.
    """
    unusual = [module for module in _linear_modules(model) if _is_quantized(module)]
    if not unusual:
        return ""
    kinds = tuple(part for module in unusual for part in (type(module), type(weight_of(module))))
    known = _tried.get(model)
    if known is None or known[0] != kinds:
        found = next((module for module in unusual if _mixes_tokens(module, model)), None)
        known = _tried[model] = kinds, "" if found is None else _name(found)
    return known[1]


def _is_quantized(module: Any) -> bool:
    weight = weight_of(module)
    return type(module) is not torch.nn.Linear or not (weight is None or type(weight) in _PLAIN)


def _name(module: Any) -> str:
    weight, name = type(weight_of(module)), repr(module).partition("(")[0]
    return name if weight in _PLAIN else f"{name} of {weight.__name__}"


@torch.no_grad()
def _mixes_tokens(module: Any, model: Any) -> bool:
    if any("Observer" in type(part).__name__ or "FakeQuant" in type(part).__name__ for part in module.modules()):
        return False  # it takes note of all that it sees
    alone = torch.tensor([math.sin(1.7 * i) for i in range(module.in_features)], dtype=model.dtype, device=model.device)
    block = torch.stack([alone, *(_OUTLIER * alone.roll(shift) for shift in (1, 2, 3))])[None]
    # As the module is called in the model, but past the hooks of others, which have nothing to see here.
    try:
        expected, found = (module.forward(x)[:, 0].float() for x in (block[:, :1], block))
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError):
        return False  # no layer that takes tokens and nothing else
    most = max(_MOST_ROUNDING, torch.finfo(model.dtype).eps)
    return bool((found - expected).norm() > most * expected.norm())
