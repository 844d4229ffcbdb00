"""Equivalent ways to compute `x @ weight.T + bias` for few rows of `x`.

Which is fastest depends on the shape, the number of rows, the processor and the library behind PyTorch. For few rows
the time should be that of reading the weights once; but where a library copies the weights into an order of its own
first, or runs them through a kernel made for many rows, a product over two rows can take three times as long as one.

Each form takes x [num_rows, in], contiguous, weight [out, in] (a transposed view for `Conv1D`) and bias [out] or None,
and returns [num_rows, out], contiguous. The results differ in rounding only.
"""

import math
from collections.abc import Callable

import torch
from torch.nn import functional

Form = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]

_NUM_BLOCKS = 8
"""Parts of a weight matrix that go through one batched product: enough to share among threads, each still large."""


def as_is(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """What `nn.Linear` and transformers' `Conv1D` compute."""
    if weight.stride(1) == 1:
        return functional.linear(x, weight, bias)
    if bias is None:
        return torch.mm(x, weight.t())
    return torch.addmm(bias, x, weight.t())


def _weight_first(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The product the other way round: a library then packs the few rows instead of the weights."""
    return _finish(torch.mm(weight, x.t()).t(), bias)


def _blocks(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Blocks of the weights as one batch; the only one of MKL's products with a single row that threads share."""
    num_out, num_in = weight.shape
    if weight.stride(1) != 1:
        return _rows_first_blocks(x, weight, bias)
    num_blocks = math.gcd(num_out, _NUM_BLOCKS)
    parts = weight.view(num_blocks, num_out // num_blocks, num_in)
    product = torch.bmm(parts, x.t().expand(num_blocks, num_in, -1))
    return _finish(product.view(num_out, -1).t(), bias)


def _rows_first_blocks(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Blocks of the weights as one batch, with the operands in the order of `as_is`."""
    num_out, num_in = weight.shape
    num_blocks = math.gcd(num_out, _NUM_BLOCKS)
    if weight.stride(1) == 1:
        parts = weight.view(num_blocks, -1, num_in).transpose(1, 2)
    else:
        parts = weight.t().view(num_in, num_blocks, -1).transpose(0, 1)
    product = torch.bmm(x.expand(num_blocks, -1, num_in), parts)
    return _finish(product.transpose(0, 1).reshape(x.shape[0], num_out), bias)


def _onednn(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """By oneDNN, which PyTorch asks for half precision only; it reads weights in their own order."""
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


def _onednn_weight_first(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """By oneDNN, the other way round."""
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(weight, x, None, "none", [], "")
    return _finish(product.t(), bias)


def _finish(product: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    product = product.contiguous()
    return product if bias is None else product.add_(bias)


FORMS: dict[str, Form] = {
    "as is": as_is,
    "weight first": _weight_first,
    "blocks": _blocks,
    "blocks, rows first": _rows_first_blocks,
}
"""Every form by name. One that a processor does not have for a type raises, and is left out."""

if hasattr(torch.ops.mkldnn, "_linear_pointwise"):  # not in every build of PyTorch
    FORMS |= {"oneDNN": _onednn, "oneDNN, weight first": _onednn_weight_first}
