"""uag's functions in place of PyTorch's give its values, in its layout, which forwards may view in another shape."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from tests.support.kernels import needs_kernels
from uag.kernels import functions, operations

pytestmark = needs_kernels


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("own", "function"),
    [
        *((lambda x, d=dim: functions._softmax(x, d), lambda x, d=dim: x.softmax(d)) for dim in (0, 2, -2, -1)),
        *((lambda x, d=dim: functions._sum(x, d), lambda x, d=dim: x.sum(d)) for dim in (0, 2, -2, -1)),
        (lambda x: functions._sum(x, 1, True), lambda x: x.sum(1, keepdim=True)),
        (lambda x: functions._sdpa(x, x, x), lambda x: functional.scaled_dot_product_attention(x, x, x)),
    ],
)
@pytest.mark.parametrize("num_tokens", [1, 5])
def test_values_and_layout(
    own: Callable[[torch.Tensor], torch.Tensor | None],
    function: Callable[[torch.Tensor], torch.Tensor],
    dtype: torch.dtype,
    num_tokens: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(operations.state, "most_rows", 99)
    x = torch.randn(2, 3, num_tokens, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    with torch.no_grad():
        found, expected = own(x), function(x)
    assert found is not None
    assert (found.dtype, found.shape, found.is_contiguous()) == (dtype, expected.shape, expected.is_contiguous())
    tolerance = 1e-5 if dtype is torch.float32 else 0.02
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dim", [None, (0, 1), [1]])
def test_other_dimensions_are_left_to_pytorch(dim: object) -> None:
    assert functions._sum(torch.ones(2, 3), dim) is None
    assert functions._sum(torch.ones(2, 3, dtype=torch.long), 0) is None
