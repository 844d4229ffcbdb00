"""Weights as models keep them, quantized ones too, and what a quantization makes of several tokens at once."""

import math
import weakref
from typing import Any

import torch

from uag.hf.layers import modules, per_call
from uag.hf.trials.once import once
from uag.hf.wrapped import device_of

_MOST_ROUNDING = 1e-4
"""What a layer gives may differ by this share, or by thrice its type's own precision, from what it gives to the same
token beside others, or from a linear function: sums in another order differ by less, 8 bit inputs by more than 50 times
as much. Higher would let some through. In bfloat16 one scale per token is no coarser than the type itself."""

_OUTLIER = 48.7
"""How much larger the other tokens are: far enough that a common scale leaves little of the first, and no power of two,
which a scale of 8 bit floats would not notice."""

_counted: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

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
    return int(model.num_parameters() + sum(module.in_features * module.out_features for module in packed))


def num_bytes(model: Any) -> int:
    """Return the bytes that a pass reads, as if every weight had the type of the model's results; counted once."""
    itself = next(iter(model.modules()))  # a draft may come as a weak proxy, which cannot be a key
    if itself not in _counted:
        _counted[itself] = num_weights(model)
    return _counted[itself] * int(model.dtype.itemsize)


def _linear_modules(model: Any) -> list[Any]:
    return [m for m in modules(model) if "in_features" in vars(m) and "out_features" in vars(m)]


@per_call
def quantized_input(model: Any) -> str:
    """Name the kind of layer, if any, that quantizes its input more coarsely than the model's type; empty for none.

    With such layers a block of candidates gives other logits than one token after the other: where all tokens of a pass
    have one scale, since it is another scale; where each has its own, since the last bits decide how values are rounded
    (in float32 one id of a hundred differs). Every layer that is not a plain one is tried once per model: with a token
    alone, before larger ones, and moved a little.
    """
    unusual = [module for module in _linear_modules(model) if _is_unusual(module)]
    if not unusual:
        return ""
    kinds = tuple(part for module in unusual for part in (type(module), type(weight_of(module)))), model.dtype

    def coarse() -> str:
        found = next((module for module in unusual if _is_coarse(module, model)), None)
        return "" if found is None else _name(found)

    return once(model, "quantized inputs", coarse, lambda _: "", kinds)


def _is_unusual(module: Any) -> bool:
    if type(module) is not torch.nn.Linear:
        return True
    weight = module._parameters.get("weight", module.__dict__.get("weight"))
    return weight is not None and type(weight) not in _PLAIN


def _name(module: Any) -> str:
    weight, name = type(weight_of(module)), repr(module).partition("(")[0]
    return name if weight in _PLAIN else f"{name} of {weight.__name__}"


def _is_coarse(module: Any, model: Any) -> bool:
    if any("Observer" in type(part).__name__ or "FakeQuant" in type(part).__name__ for part in module.modules()):
        return False  # it takes note of all that it sees
    alone = torch.tensor(
        [math.sin(1.7 * i) for i in range(module.in_features)], dtype=model.dtype, device=device_of(model)
    )
    beside = torch.stack([alone, *(_OUTLIER * alone.roll(shift) for shift in (1, 2, 3))])
    moved = [torch.lerp(alone, alone.roll(5), share) for share in (0.01, 0.02)]
    # As the module is called in the model, but past the hooks of others, which have nothing to see here.
    try:
        first, among, *others = (
            module.forward(x[None])[0, 0].float() for x in (alone[None], beside, *(m[None] for m in moved))
        )
    except (AssertionError, AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError):
        return False  # no layer that takes tokens and nothing else
    most = max(_MOST_ROUNDING, 3 * torch.finfo(model.dtype).eps) * first.norm()
    bend = others[1] - 2 * others[0] + first
    return bool((among - first).norm() > most or bend.norm() > most)


def without_gradients(model: Any) -> type[torch.no_grad | torch.inference_mode]:
    """Return the context for a model's passes: `inference_mode` costs least, and some quantized weights fail in it.

    Offloaded weights would be left as tensors of that mode.
    """
    tensors = [*model.parameters(), *(weight_of(module) for module in _linear_modules(model))]
    is_plain = all(tensor is None or (type(tensor) in _PLAIN and tensor.device.type != "meta") for tensor in tensors)
    return torch.inference_mode if is_plain else torch.no_grad
