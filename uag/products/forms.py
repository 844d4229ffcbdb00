"""Equivalent forms of `x @ weight.T + bias` for few rows of `x`, and the rule that picks one by the number of rows.

For few rows the time should be that of reading the weights once. `nn.Linear` calls MKL, whose general product reorders
the weights block by block first, so that a product over two rows takes twice as long as one. docs/products.md has the
measurements.

Each form takes x [num_rows, num_in], weight [num_out, num_in] and bias [num_out] or None, all contiguous float32, and
returns [num_rows, num_out], contiguous. Results differ from those of `nn.Linear` in rounding only. No form copies the
weights.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

Form = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]

_NUM_BLOCKS = 8
"""Parts of a weight matrix in one batched product. Increase to share the work among more threads; decrease to make each
part larger, which saves the start of a product per part."""


def weight_first(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Multiply the weights by `x`: MKL then reorders the few rows of `x` instead of the weights."""
    return _finish(torch.mm(weight, x.t()).t(), bias)


def blocks(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Multiply blocks of the weights by `x` as one batch, so that threads share the work for a single row."""
    num_out, num_in = weight.shape
    num_blocks = math.gcd(num_out, _NUM_BLOCKS)
    parts = weight.view(num_blocks, num_out // num_blocks, num_in)
    product = torch.bmm(parts, x.t().expand(num_blocks, num_in, -1))
    return _finish(product.view(num_out, -1).t(), bias)


def onednn(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Multiply with oneDNN, which PyTorch itself uses in half precision only. It does not reorder the weights."""
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


def onednn_weight_first(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Multiply the weights by `x` with oneDNN."""
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(weight, x, None, "none", [], "")
    return _finish(product.t(), bias)


def _finish(product: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    product = product.contiguous()
    return product if bias is None else product.add_(bias)


class Rule(NamedTuple):
    """The form for each number of rows; None for the layer's own product.

    Attributes:
        one_row_one_thread: one row, while PyTorch uses one thread.
        one_row: one row, while PyTorch uses several threads.
        two_rows: two rows.
        few_rows: three rows up to `FEW_ROWS`.
        more_rows: up to `MAX_ROWS`.
    """

    one_row_one_thread: Form | None
    one_row: Form
    two_rows: Form
    few_rows: Form
    more_rows: Form


FEW_ROWS = 8
"""Increase where oneDNN reads `x` row by row faster than the weights; decrease where the weights first are faster."""

MAX_ROWS = 32
"""Increase to cover wider passes; decrease where wide passes lose: the layer's own product catches up with the rows."""

_RULES = {
    "AVX2": Rule(None, blocks, weight_first, onednn_weight_first, onednn_weight_first),
    "AVX512": Rule(blocks, blocks, weight_first, onednn, onednn_weight_first),
}
"""The fastest form by instruction set over the shapes in docs/products.md. One rule for all shapes gives up some speed
on a few of them, and saves measuring each shape during the first call."""


def _find_rule() -> Rule | None:
    has_mkl: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    if has_mkl and hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return _RULES.get(torch.backends.cpu.get_cpu_capability())
    return None


RULE = _find_rule()
"""The rule for this processor and build of PyTorch; None where no form was measured."""


def pick_form(num_rows: int) -> Form | None:
    """Return the form for up to `MAX_ROWS` rows; None for the layer's own product."""
    if RULE is None:
        return None
    if num_rows == 1:
        return RULE.one_row_one_thread if torch.get_num_threads() == 1 else RULE.one_row
    if num_rows == 2:
        return RULE.two_rows
    return RULE.few_rows if num_rows <= FEW_ROWS else RULE.more_rows
