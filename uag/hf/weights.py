"""Model weights, including quantized ones, and detection of layers that quantize their input."""

import math
from typing import Any

import torch

from uag import forks
from uag.hf.inspection import in_evaluation, modules, per_call
from uag.hf.trials import once
from uag.hf.wrapped import device_of, weight_of

_MOST_ROUNDING = 1e-4
"""Relative difference that is treated as rounding; raised to three times the dtype's precision if smaller.

A layer's output for a token alone is compared with its output in a batch, and with a linear function. Reordered sums
differ by less; 8-bit inputs differ by more than 50 times as much."""

_OUTLIER = 48.7
"""Factor by which the other tokens are larger, so that a shared scale loses most of the first token's precision. It is
not a power of two, to which scales of 8-bit floats are insensitive."""

_PLAIN = (torch.nn.Parameter, torch.Tensor, type(None))


def num_outputs(module: Any) -> int | None:
    """Return the number of outputs of a linear module, even with packed weights; None if unknown."""
    weight, size = weight_of(module), getattr(module, "out_features", None)
    inputs = getattr(module, "in_features", None)
    if weight is not None and weight.dim() == 2 and (inputs is None or weight.shape[1] == inputs):
        return int(weight.shape[0])
    return size if isinstance(size, int) else None


def num_bytes(model: Any) -> int:
    """Return the bytes of a model's weights, which a pass reads; 4-bit weights are packed."""
    return int(model.get_memory_footprint(return_buffers=False))


def shapes(model: Any) -> int:
    """Return a hash of the shapes of a model's parameters, which adapters change."""
    return hash(tuple((name, parameter.shape) for name, parameter in model.named_parameters()))


def _linear_modules(model: Any) -> list[Any]:
    return [m for m in modules(model) if "in_features" in vars(m) and "out_features" in vars(m)]


@per_call
def quantized_input(model: Any) -> str:
    """Return the kind of layer that quantizes its input more coarsely than the model's dtype, or an empty string.

    A scale shared by all tokens of a pass changes with the pass. With per-token scales, differences in the last bits
    change the rounding (in float32, one id in a hundred differs).
    """
    layers = [(module, type(module), type(weight_of(module))) for module in _linear_modules(model)]
    unusual = [layer for layer in layers if layer[1] is not torch.nn.Linear or layer[2] not in _PLAIN]
    if not unusual:
        return ""

    def coarse() -> str:
        for module, _, weight in unusual:
            if _is_coarse(module, model):
                name = repr(module).partition("(")[0]
                return name if weight in _PLAIN else f"{name} of {weight.__name__}"
        return ""

    kinds = tuple(layer[1:] for layer in unusual), model.dtype
    return once(model, "quantized inputs", coarse, lambda _: "", kinds)


def _is_coarse(module: Any, model: Any) -> bool:
    if any("Observer" in type(part).__name__ or "FakeQuant" in type(part).__name__ for part in module.modules()):
        return False  # it records its inputs, so it must not see synthetic ones
    alone = torch.tensor(
        [math.sin(1.7 * i) for i in range(module.in_features)], dtype=model.dtype, device=device_of(model)
    )
    together = torch.stack([alone, *(_OUTLIER * alone.roll(shift) for shift in (1, 2, 3))])
    interpolated = [torch.lerp(alone, alone.roll(5), share) for share in (0.01, 0.02)]
    # Inputs are [1, length, size], as in the model. Hooks are bypassed, as they must not see synthetic inputs.
    try:
        with in_evaluation(module):
            expected, in_batch, *on_line = (
                module.forward(x[None])[0, 0].float() for x in (alone[None], together, *(i[None] for i in interpolated))
            )
    except (AssertionError, AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        forks.let_pass(error)
        return False  # the layer's inputs are not tokens
    tolerance = max(_MOST_ROUNDING, 3 * torch.finfo(model.dtype).eps) * expected.norm()
    curvature = on_line[1] - 2 * on_line[0] + expected
    return bool((in_batch - expected).norm() > tolerance or curvature.norm() > tolerance)


def without_gradients(model: Any) -> type[torch.no_grad | torch.inference_mode]:
    """Return the context for passes: `inference_mode`, or `no_grad` for quantized and offloaded weights."""
    tensors = [*model.parameters(), *(weight_of(module) for module in _linear_modules(model))]
    is_plain = all(tensor is None or (type(tensor) in _PLAIN and tensor.device.type != "meta") for tensor in tensors)
    return torch.inference_mode if is_plain else torch.no_grad


def drop_inference_tensors(model: Any) -> None:
    """Replace tensors that passes in `inference_mode` left in a model's modules: they could not be trained with."""
    for module in model.modules():
        for known in (vars(module), module._buffers):
            for name, value in list(known.items()):
                if isinstance(value, torch.Tensor) and value.is_inference():
                    known[name] = value.clone()
