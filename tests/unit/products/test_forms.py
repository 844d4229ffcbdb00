"""Every form computes the same product, and the rule picks one by what was compiled and the number of rows."""

import runpy

import pytest
import torch

from uag.products import FastProducts, forms, kernel, placing

pytestmark = pytest.mark.skipif(forms.INSTRUCTION_SET is None, reason="no form was measured here")


@pytest.mark.parametrize("form", [forms.blocks, forms.onednn_weight_first])  # the kernel has tests of its own
@pytest.mark.parametrize("num_rows", [1, 2, 3, 8, forms.MAX_ROWS])
@pytest.mark.parametrize(("num_out", "num_in"), [(64, 40), (33, 7), (1, 5)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_form_differs_from_the_layer_in_rounding_only(
    form: forms.Form, num_rows: int, num_out: int, num_in: int, has_bias: bool
) -> None:
    torch.manual_seed(0)
    x, bias = torch.randn(num_rows, num_in), torch.randn(num_out) if has_bias else None
    weight = torch.randn(num_out, num_in)
    product = form(x, weight, bias)
    expected = x.double() @ weight.double().t() + (0.0 if bias is None else bias.double())
    assert product.shape == (num_rows, num_out)
    assert product.is_contiguous()
    assert product.dtype == x.dtype
    torch.testing.assert_close(product.double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("instruction_set", "one_row_one_thread"), [("AVX2", None), ("AVX512", forms.blocks)])
def test_without_the_kernel_the_rule_goes_by_rows_and_threads(
    instruction_set: str, one_row_one_thread: forms.Form | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forms, "INSTRUCTION_SET", instruction_set)
    monkeypatch.setattr(kernel, "LEVEL", "")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    picked = [forms.pick_form(num_rows) for num_rows in (1, 2, forms.MAX_ROWS)]
    assert picked == [forms.blocks, forms.onednn_weight_first, forms.onednn_weight_first]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert forms.pick_form(1) == one_row_one_thread


def test_a_processor_that_was_not_measured_keeps_its_own_products(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(1024, 1024).eval()
    assert len(FastProducts(model)) == 1
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    monkeypatch.setattr(kernel, "LEVEL", "")  # test_kernel.py
    monkeypatch.setattr(placing, "IS_USED", runpy.run_path(forms.__file__)["IS_USED"])
    assert len(FastProducts(model)) == 0
