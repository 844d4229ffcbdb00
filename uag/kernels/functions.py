"""Functions of PyTorch that forwards call themselves, computed by uag's kernels."""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from uag.kernels import kernel, operations
from uag.kernels.steps import TYPES


class Functions(TorchFunctionMode):
    """Replaces functions of PyTorch that forwards call themselves, in this thread."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function by uag's kernel, or as it is."""
        kwargs = kwargs or {}
        own = _FUNCTIONS.get(func)
        if own is None or (own is _mul and not _is_complex(*args[:1])):
            return func(*args, **kwargs)
        is_known = args and kwargs.keys() <= _names_of(own) and operations.is_usual(args[0])
        output = own(*args, **kwargs) if is_known else None
        if output is None:
            operations.pass_on(func.__name__)
            return func(*args, **kwargs)
        return output


@cache
def _names_of(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def _sdpa(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor | None:
    if dropout_p or not operations.fits_attention(query, key, value):
        return None
    if attn_mask is not None and (is_causal or attn_mask.dim() < 2):
        return None  # PyTorch raises an error, or applies both
    if not enable_gqa and key.shape[1] not in (1, query.shape[1]):
        return None
    mask = operations.causal_mask(query, key) if is_causal else attn_mask
    output = kernel.attention(query, key, value, mask, scale)
    if output is None:
        return None
    output = output.transpose(1, 2)
    return output.contiguous() if query.is_contiguous() else output  # as PyTorch's, which callers may view


def _matmul(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor | None:
    """Multiply by a transposed weight, as Falcon does, or matrix by matrix, as attention outside the registry does."""
    if x.dim() < 2 or other.dim() < 2 or x.shape[-1] != other.shape[-2]:
        return None
    if other.dim() == 2 and other.stride(0) == 1:  # a weight; or keys, which may be a part of a tensor
        return kernel.linear(x, other.t().contiguous())
    if other.dim() == 2:
        return kernel.conv1d(x, other.contiguous())
    batch = torch.broadcast_shapes(x.shape[:-2], other.shape[:-2])  # type: ignore[no-untyped-call]
    pairs = zip(*(part.expand(*batch, -1, -1).flatten(0, -3) for part in (x, other)), strict=True)
    products = [_matmul(*pair) for pair in pairs]
    known = [product for product in products if product is not None]
    return torch.stack(known).view(*batch, x.shape[-2], -1) if len(known) == len(products) > 0 else None


def _bmm(x: torch.Tensor, mat2: torch.Tensor) -> torch.Tensor | None:
    return _matmul(x, mat2) if x.dim() == mat2.dim() == 3 and len(x) == len(mat2) else None


def _baddbmm(
    added: torch.Tensor, batch1: torch.Tensor, batch2: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor | None:
    product = _bmm(batch1, batch2)
    if product is None or added.dtype is not product.dtype:
        return None
    added = added.expand_as(product)
    return alpha * product if beta == 0 else beta * added + alpha * product  # with 0, `added` may be NaN


def _conv1d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> torch.Tensor | None:
    """Sum a convolution in one order: x [batch, channels, tokens], weight [channels, channels of a group, size]."""
    pads, size = padding[0] if isinstance(padding, tuple) else padding, weight.shape[-1]
    is_dense = (stride, dilation) in ((1, 1), ((1,), (1,))) and isinstance(pads, int)
    is_single = groups == len(weight) == x.shape[1]
    dtypes = {x.dtype, weight.dtype, x.dtype if bias is None else bias.dtype}
    if not (
        is_dense and x.dim() == 3 and x.dtype in TYPES and len(dtypes) == 1 and is_single == (weight.shape[1] == 1)
    ):
        return None
    if bias is not None and bias.shape != weight.shape[:1]:
        return None  # PyTorch raises an error
    # A token's channels lie side by side, as for a single token, so what follows sums them in the same order.
    padded = functional.pad(x.transpose(1, 2).contiguous(), (0, 0, pads, pads))
    num_tokens = padded.shape[1] - size + 1
    if num_tokens < 1:
        return None  # PyTorch raises an error
    if not is_single:
        inputs = padded.unfold(1, size, 1).chunk(groups, dim=2)
        biases = [None] * groups if bias is None else bias.chunk(groups)
        given = zip(inputs, weight.flatten(1).chunk(groups), biases, strict=True)
        parts = [kernel.linear(of_group.flatten(2), factors, added) for of_group, factors, added in given]
        known = [part for part in parts if part is not None]
        return torch.cat(known, dim=2).transpose(1, 2) if len(known) == groups else None
    padded, factors = padded.float(), weight.float()[:, 0].t().contiguous()
    total = padded[:, :num_tokens] * factors[0]
    for place in range(1, size):
        total += padded[:, place : place + num_tokens] * factors[place]
    return (total if bias is None else total + bias.float()).to(x.dtype).transpose(1, 2)


def _silu(x: torch.Tensor, inplace: bool = False) -> torch.Tensor | None:
    return None if inplace else kernel.gate(x, "silu")


def _gelu(x: torch.Tensor, approximate: str = "none") -> torch.Tensor | None:
    kind = {"none": "gelu", "tanh": "gelu_tanh"}.get(approximate)
    return kernel.gate(x, kind) if kind else None


def _sigmoid(x: torch.Tensor) -> torch.Tensor | None:
    return kernel.gate(x, "sigmoid")


def _softplus(x: torch.Tensor, beta: float = 1.0, threshold: float = 20.0) -> torch.Tensor | None:
    return kernel.gate(x, "softplus") if (beta, threshold) == (1.0, 20.0) else None


def _log_sigmoid(x: torch.Tensor) -> torch.Tensor | None:
    y = kernel.gate(-x, "softplus")
    return None if y is None else -y


def _softmax(x: torch.Tensor, dim: int | None = None, dtype: torch.dtype | None = None) -> torch.Tensor | None:
    """Sum each row in one order, to which masked scores at its end add nothing."""
    if dim is None or not x.dim() or (dtype or x.dtype) not in TYPES:
        return None
    powers = x.movedim(dim, -1).contiguous().float()
    powers = (powers - powers.amax(-1, keepdim=True)).exp_()
    total = _row_sums(powers)
    return None if total is None else (powers / total).to(dtype or x.dtype).movedim(-1, dim).contiguous()


def _sum(x: torch.Tensor, dim: Any = None, keepdim: bool = False) -> torch.Tensor | None:
    """Sum each row in one order, such as over experts, whose tokens lie side by side."""
    if not isinstance(dim, int) or not x.dim() or x.dtype not in TYPES:
        return None
    total = _row_sums(x.movedim(dim, -1).contiguous().float())
    if total is None:
        return None
    return total.to(x.dtype).movedim(-1, dim) if keepdim else total[..., 0].to(x.dtype)


def _row_sums(x: torch.Tensor) -> torch.Tensor | None:
    return kernel.conv1d(x, x.new_ones(x.shape[-1], 1))


def _logsumexp(x: torch.Tensor, dim: Any, keepdim: bool = False) -> torch.Tensor | None:
    if dim not in (-1, x.dim() - 1) or x.dtype not in TYPES:
        return None
    wide = x.float()
    largest = wide.amax(-1, keepdim=True)
    largest = largest.masked_fill(largest.isinf(), 0.0)
    total = _row_sums((wide - largest).exp_())
    if total is None:
        return None
    output = (largest + total.log()).to(x.dtype)
    return output if keepdim else output[..., 0]


def _is_complex(x: Any = None) -> bool:
    return isinstance(x, torch.Tensor) and x.is_complex()


def _mul(x: torch.Tensor, other: Any) -> torch.Tensor | None:
    """Multiply complex values, such as rotary positions, by operations that round each value in the same way."""
    real, imag = other.real, other.imag if _is_complex(other) or isinstance(other, complex) else 0.0
    parts = x.real * real - x.imag * imag, x.real * imag + x.imag * real
    return torch.view_as_complex(torch.stack(parts, dim=-1))


def _functional_softmax(
    x: torch.Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None
) -> torch.Tensor | None:
    return _softmax(x, dim, dtype)


_FUNCTIONS: dict[Any, Callable[..., torch.Tensor | None]] = {
    functional.linear: kernel.linear,
    functional.conv1d: _conv1d,
    functional.scaled_dot_product_attention: _sdpa,
    functional.silu: _silu,
    functional.gelu: _gelu,
    functional.softmax: _functional_softmax,
    torch.softmax: _softmax,
    torch.Tensor.softmax: _softmax,
    functional.softplus: _softplus,
    functional.logsigmoid: _log_sigmoid,
    torch.sigmoid: _sigmoid,
    torch.Tensor.sigmoid: _sigmoid,
    torch.logsumexp: _logsumexp,
    torch.Tensor.logsumexp: _logsumexp,
    torch.sum: _sum,
    torch.Tensor.sum: _sum,
    torch.mul: _mul,
    torch.Tensor.mul: _mul,
    torch.Tensor.__mul__: _mul,
    torch.baddbmm: _baddbmm,
    torch.Tensor.baddbmm: _baddbmm,
    torch.bmm: _bmm,
    torch.Tensor.bmm: _bmm,
    torch.matmul: _matmul,
    torch.Tensor.matmul: _matmul,
    torch.Tensor.__matmul__: _matmul,
}
