"""Equivalent forms of `x @ weight.T + bias` for few rows of `x`, and the rule that picks one.

For few rows, a product should take as long as reading the weights once. But `nn.Linear` calls MKL, whose general
product first reorders the weights block by block, so two rows take twice as long as one (pytorch issue 96643). uag's
own kernel reads the weights once. Where it was not compiled, two forms of PyTorch's operations serve. See
docs/products.md for measurements.

Each form takes x [..., num_in], weight [num_out, num_in] and bias [num_out] or None, all contiguous float32, and
returns [..., num_out], contiguous. Results differ from those of `nn.Linear` only by rounding. No form copies the
weights.
"""

import math
from collections.abc import Callable

import torch

from uag.products import kernel

Form = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]

_NUM_BLOCKS = 8
"""Number of blocks of a weight matrix in one batched product. Increase to use more threads; decrease for larger blocks,
with less overhead per block."""


def blocks(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Multiply blocks of the weights by `x` as one batch, so that threads share the work for a single row."""
    num_out, num_in = weight.shape
    num_blocks = math.gcd(num_out, _NUM_BLOCKS)
    parts = weight.view(num_blocks, num_out // num_blocks, num_in)
    product = torch.bmm(parts, x.view(-1, num_in).t().expand(num_blocks, num_in, -1))
    return _finish(product.view(num_out, -1), x, bias)


def onednn_weight_first(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Multiply the weights by `x` with oneDNN."""
    rows = x.view(-1, x.shape[-1])
    return _finish(torch.ops.mkldnn._linear_pointwise(weight, rows, None, "none", [], ""), x, bias)


def _finish(product: torch.Tensor, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Turn a product [num_out, num_rows] into the result for x."""
    product = product.t().contiguous().view(*x.shape[:-1], -1)
    return product if bias is None else product.add_(bias)


MAX_ROWS = 32
"""Maximum number of rows. Increase to cover wider passes; decrease if the layer's own product is faster for them."""


def _find_instruction_set() -> str | None:
    has_mkl: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    instruction_set = torch.backends.cpu.get_cpu_capability()
    is_measured = instruction_set in ("AVX2", "AVX512")
    return instruction_set if is_measured and has_mkl and hasattr(torch.ops.mkldnn, "_linear_pointwise") else None


INSTRUCTION_SET = _find_instruction_set()
"""The CPU's instruction set; None if no forms were measured for it or for this build of PyTorch."""

IS_USED = bool(kernel.LEVEL) or INSTRUCTION_SET is not None
"""Whether products of few rows differ from `nn.Linear`'s at all."""


def pick_form(num_rows: int) -> Form | None:
    """Return the form for a number of rows up to `MAX_ROWS`; None for the layer's own product."""
    if kernel.LEVEL:
        return kernel.linear  # type: ignore[return-value]
    if INSTRUCTION_SET is None or (num_rows == 1 and INSTRUCTION_SET == "AVX2" and torch.get_num_threads() == 1):
        return None
    return blocks if num_rows == 1 else onednn_weight_first
