"""The compiled kernels for few rows (`_rows.c`): they read the weights once, and no row's result depends on the others.

They are compiled when uag is installed, if there is a C compiler for x86-64 or Arm; `library` loads them.

This module is the only place where the C code takes anything from Python, and it checks everything that the C code
relies on. Each function returns None if it cannot compute a result; the caller then uses PyTorch's operation. Results
have the inputs' dtype: float32, bfloat16 or float16. Sums are float32, in a fixed order, and rounded once. So a result
depends neither on the other rows or their number, nor on padding, nor on the number of threads. There are no gradients.
"""

import functools
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec

import torch

from uag import forks
from uag.kernels import library
from uag.kernels.steps import TYPES

_P = ParamSpec("_P")

_FEWEST_FOR_THREADS = 1 << 16
"""Smallest number of products of two numbers that threads share: waking them takes longer than fewer."""

_FEWEST_GATES_FOR_THREADS = 1 << 14
"""Smallest number of values of a gate that threads share, with the same trade."""

_IS_KEPT = -1  # the type of boolean masks

_SHARE = 2 * math.sqrt(2 / math.pi)
GATES = {
    "silu": (1.0, 0.0, 0),
    "gelu": (0.0, 0.0, 2),
    "gelu_tanh": (_SHARE, _SHARE * 0.044715, 0),
    "quick_gelu": (1.702, 0.0, 0),
    "sigmoid": (1.0, 0.0, 1),
    "softplus": (1.0, 0.0, 3),
}
"""The functions that `gate` computes, with the factors and the kind of each in `_rows.c`. PyTorch computes the last
values of each thread's share with other code than the rest, so that its results depend on the number of rows."""


_library, _level, LEVEL, MISSING = library.load(Path(__file__).parent)
"""`LEVEL` is the instruction set of the kernels: "AVX512", "AVX2" or "NEON"; "" if they are not used.
`MISSING` then says why, phrased to follow "without uag's kernels: "."""

# The structures that the C functions take; see there.
_PRODUCT = struct.Struct("@4P4q3i").pack
_ATTENTION = struct.Struct("@6P19q2f4i").pack
_EXPERTS = struct.Struct("@6P5q3i").pack
_GATE = struct.Struct("@2Pq2f4i").pack


def describe() -> str:
    """Return what computes the products of few rows, for people."""
    return f"uag's kernels ({LEVEL})" if LEVEL else f"PyTorch's operations, without uag's kernels: {MISSING}"


def _or_none(function: Callable[_P, torch.Tensor | None]) -> Callable[_P, torch.Tensor | None]:
    """Return None instead of PyTorch's errors, which tensors without memory of their own raise, such as functorch's."""

    @functools.wraps(function)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> torch.Tensor | None:
        try:
            return function(*args, **kwargs)
        except RuntimeError as error:
            forks.let_pass(error)
            return None

    return run


def can_read(*tensors: torch.Tensor | None) -> bool:
    """Return whether the kernels can read weights in place: plain, contiguous CPU tensors of one of their dtypes.

    Ask once for each layer. Its products return None if that changes.
    """
    given = [tensor for tensor in tensors if tensor is not None]
    try:
        return bool(LEVEL) and all(
            tensor.dtype is given[0].dtype and is_readable(tensor) and tensor.is_contiguous() for tensor in given
        )
    except RuntimeError as error:
        forks.let_pass(error)
        return False


def is_readable(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's values lie as they are where `data_ptr` says, or it raises an error.

    False for packed weights (subclasses), sparse ones, zeros without memory, and imaginary parts of conjugates, whose
    signs turn when they are read.
    """
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and tensor.is_cpu
        and tensor.dtype in TYPES
        and not tensor.is_neg()
        and (tensor.data_ptr() != 0 or tensor.numel() == 0)
    )


@_or_none
def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor | None:
    """Return `x @ weight.T + bias`: x [..., num_in], weight [num_out, num_in], contiguous, and bias [num_out]."""
    if weight.dim() != 2:
        return None
    num_out, num_in = weight.shape
    return _product("rows_linear", x, weight, bias, num_out, num_in)


@_or_none
def conv1d(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor | None:
    """Return `x @ weight + bias`: x [..., num_in], weight [num_in, num_out], contiguous, and bias [num_out]."""
    if weight.dim() != 2:
        return None
    num_in, num_out = weight.shape
    return _product("rows_conv1d", x, weight, bias, num_out, num_in)


def _product(
    function: str, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, num_out: int, num_in: int
) -> torch.Tensor | None:
    dtype, shape = weight.dtype, x.shape
    if (
        x.dtype is not dtype
        or not shape
        or shape[-1] != num_in
        or not weight.is_contiguous()
        or not is_readable(x)
        or not is_readable(weight)
    ):
        return None
    x = x.contiguous()
    bias_data = 0
    if bias is not None:
        if bias.dtype is not dtype or bias.shape != (num_out,) or not is_readable(bias):
            return None
        bias = bias.contiguous()
        bias_data = bias.data_ptr()
    y = x.new_empty((*shape[:-1], num_out))
    num_threads = torch.get_num_threads() if weight.numel() >= _FEWEST_FOR_THREADS else 1
    num_rows = x.numel() // num_in if num_in else math.prod(shape[:-1])
    if not (num_rows and num_out):
        return y
    _run(function, _PRODUCT(
        x.data_ptr(), weight.data_ptr(), bias_data, y.data_ptr(),
        num_rows, num_in, num_out, num_in, TYPES[dtype], _level, num_threads,
    ))  # fmt: skip
    return y


@_or_none
def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor | None:
    """Return what queries select from values, [batch, rows, heads, value_size].

    A masked key counts for nothing, even if it or its value is not finite. A row whose keys are all masked is zero.

    Args:
        query: [batch, heads, rows, size].
        key: [batch, kv_heads, keys, size], with any strides but 1 for the last dimension.
        value: [batch, kv_heads, keys, value_size], likewise.
        mask: boolean, False for masked keys, or what to add to the scores, for [batch, heads, rows, keys].
        scale: what scores are multiplied by; None for 1 / sqrt(size).
        softcap: bounds the scores before the mask is added; 0 or None for no bound.
        sinks: [heads], one more score for each head, whose value is zero.
    """
    if not (query.dim() == key.dim() == value.dim() == 4 and query.dtype is key.dtype is value.dtype):
        return None
    (batch, heads, rows, size), (_, kv_heads, keys, value_size) = query.shape, value.shape
    if (
        key.shape != (batch, kv_heads, keys, size)
        or value.shape[0] != batch
        or not kv_heads
        or heads % kv_heads
        or (key.stride(3) != 1 and size > 1)
        or (value.stride(3) != 1 and value_size > 1)
        or not (is_readable(query) and is_readable(key) and is_readable(value))
    ):
        return None
    if query.stride(3) != 1:
        query = query.contiguous()
    mask_data, mask_type, mask_strides = 0, _IS_KEPT, query.stride()[:3]
    if mask is not None:
        if mask.dim() > 4 or not mask.is_cpu or not (mask.dtype is torch.bool or is_readable(mask)):
            return None
        if mask.shape[-1:] != (keys,) or (mask.stride(-1) != 1 and keys > 1):
            mask = mask.expand(*mask.shape[:-1], keys).contiguous()
        mask_strides = mask.expand(batch, heads, rows, keys).stride()[:3]
        mask_data, mask_type = mask.data_ptr(), TYPES.get(mask.dtype, _IS_KEPT)
    sinks_data = 0
    if sinks is not None:
        if sinks.shape != (heads,) or not is_readable(sinks):
            return None
        sinks = sinks.float().contiguous()
        sinks_data = sinks.data_ptr()
    out = query.new_empty((batch, rows, heads, value_size))
    if not out.numel():
        return out
    num_threads = torch.get_num_threads() if batch * heads * rows * keys * size >= _FEWEST_FOR_THREADS else 1
    _run("rows_attention", _ATTENTION(
        query.data_ptr(), key.data_ptr(), value.data_ptr(), mask_data, sinks_data, out.data_ptr(),
        batch, heads, kv_heads, rows, keys, size, value_size,
        *query.stride()[:3], *key.stride()[:3], *value.stride()[:3], *mask_strides,
        size**-0.5 if scale is None else scale, softcap or 0.0, mask_type, TYPES[query.dtype], _level, num_threads,
    ))  # fmt: skip
    return out


@_or_none
def experts(
    x: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor | None:
    """Return the sum of `share * down @ (silu(gate @ x) * (up @ x))` over the chosen experts of each row.

    Args:
        x: [rows, hidden].
        chosen: [rows, experts per row] int64, the numbers of the experts.
        shares: of the same shape.
        gate_up: [num_experts, 2 * inner, hidden], contiguous.
        down: [num_experts, hidden, inner], contiguous.
    """
    if not (x.dim() == chosen.dim() == 2 and gate_up.dim() == down.dim() == 3):
        return None
    (rows, hidden), (num_experts, _, inner) = x.shape, down.shape
    if (
        gate_up.shape != (num_experts, 2 * inner, hidden)
        or down.shape[1] != hidden
        or shares.shape != chosen.shape
        or len(chosen) != rows
        or chosen.dtype is not torch.int64
        or not chosen.is_cpu
        or not x.dtype is gate_up.dtype is down.dtype
        or not (gate_up.is_contiguous() and down.is_contiguous())
        or not all(map(is_readable, (x, shares, gate_up, down)))
    ):
        return None
    x, chosen, shares = x.contiguous(), chosen.contiguous(), shares.float().contiguous()
    out = torch.empty_like(x)
    is_done = _run("rows_experts", _EXPERTS(
        x.data_ptr(), gate_up.data_ptr(), down.data_ptr(), chosen.data_ptr(), shares.data_ptr(), out.data_ptr(),
        rows, chosen.shape[1], hidden, inner, num_experts, TYPES[x.dtype], _level, torch.get_num_threads(),
    ))  # fmt: skip
    return out if is_done else None


@_or_none
def gate(x: torch.Tensor, kind: str) -> torch.Tensor | None:
    """Return a function of each value; `kind` is one of `GATES`."""
    if not is_readable(x):
        return None
    x = x.contiguous()
    y = torch.empty_like(x)
    first, third, number = GATES[kind]
    num_threads = torch.get_num_threads() if x.numel() >= _FEWEST_GATES_FOR_THREADS else 1
    values = x.data_ptr(), y.data_ptr(), x.numel(), first, third, number, TYPES[x.dtype], _level, num_threads
    _run("rows_gate", _GATE(*values))
    return y


def _run(function: str, arguments: bytes) -> bool:
    """Run a function of the library; return False if it found an expert that does not exist."""
    status = getattr(_library, function)(arguments)
    if status == 1:
        raise MemoryError("The kernels found no memory for a pass's intermediate results")
    return bool(status == 0)
