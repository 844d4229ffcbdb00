"""Every form computes the same product."""

import pytest
import torch

from uag.products.forms import FORMS, as_is


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("num_rows", [1, 2, 3, 8, 17])
@pytest.mark.parametrize(("num_out", "num_in"), [(64, 40), (33, 7), (1, 5)])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_a_form_differs_from_the_layer_in_rounding_only(
    name: str, num_rows: int, num_out: int, num_in: int, has_bias: bool, is_transposed: bool
) -> None:
    torch.manual_seed(0)
    x, bias = torch.randn(num_rows, num_in), torch.randn(num_out) if has_bias else None
    weight = torch.randn(num_in, num_out).t() if is_transposed else torch.randn(num_out, num_in)
    product = FORMS[name](x, weight, bias)
    expected = x.double() @ weight.double().t() + (0.0 if bias is None else bias.double())
    assert product.shape == (num_rows, num_out)
    assert product.is_contiguous()
    assert product.dtype == x.dtype
    torch.testing.assert_close(product.double(), expected, rtol=0, atol=1e-5)


def test_what_the_layers_do_is_among_them_bit_for_bit() -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(3, 24), torch.randn(16, 24), torch.randn(16)
    assert as_is(x, weight, bias).equal(torch.nn.functional.linear(x, weight, bias))
    transposed = weight.t().contiguous()
    assert as_is(x, transposed.t(), bias).equal(torch.addmm(bias, x, transposed))
