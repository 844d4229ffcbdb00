"""The compiled product: right for any shape, and a row's result depends on that row alone."""

import copy
import io
import runpy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

from uag.products import FastProducts, forms, kernel

pytestmark = pytest.mark.skipif(not kernel.BITS, reason="the kernel was not compiled here")

SIZE = 768
SHAPES = [(1, 1), (5, 3), (33, 17), (100, 1_536), (7, 4_100), (64, 16), (31, 8), (200, 129)]


def drawn(num_rows: int, shape: tuple[int, int], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(num_rows)
    num_out, num_in = shape
    sizes = (num_rows, num_in), shape, (num_out,)
    x, weight, bias = (torch.randn(size, generator=generator).to(dtype) for size in sizes)
    return x, weight, bias


@pytest.fixture(params=[256, 512])
def bits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    if request.param > kernel.BITS:
        pytest.skip("needs AVX-512")
    monkeypatch.setattr(kernel, "BITS", request.param)
    return int(request.param)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_product_equals_one_in_float64_up_to_rounding(
    shape: tuple[int, int], dtype: torch.dtype, bits: int
) -> None:
    tolerance = 1e-5 if dtype is torch.float32 else 2**-8
    for num_rows in (*range(1, 10), 16, 19, 32):
        x, weight, bias = drawn(num_rows, shape, dtype)
        for given in (None, bias):
            expected = x.double() @ weight.double().t() + (0.0 if given is None else given.double())
            scale = x.double().abs() @ weight.double().abs().t() + bias.double().abs()
            product = kernel.product(x, weight, given)
            assert (product.shape, product.dtype, product.is_contiguous()) == (expected.shape, dtype, True)
            assert ((product.double() - expected).abs() / scale).max() < tolerance


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_is_the_same_bit_for_bit_at_any_place_among_any_others(
    shape: tuple[int, int], dtype: torch.dtype, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight, bias = drawn(19, shape, dtype)
    alone = torch.cat([kernel.product(row[None], weight, bias) for row in x])
    monkeypatch.setattr(kernel, "_FEWEST_FOR_THREADS", 0)
    for num_threads in (1, 2, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda num=num_threads: num)
        for num_rows in (*range(1, 10), 16, 19):
            assert torch.equal(kernel.product(x[:num_rows], weight, bias), alone[:num_rows])
            assert torch.equal(kernel.product(x[-num_rows:], weight, bias), alone[-num_rows:])


def test_threads_that_call_at_once_get_their_own_results() -> None:
    x, weight, bias = drawn(6, (3_000, 257), torch.float32)
    expected = kernel.product(x, weight, bias)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: kernel.product(x, weight, bias), range(200)))
    assert all(torch.equal(product, expected) for product in found)


@pytest.mark.parametrize(("switch", "capability", "bits"), [("off", "AVX2", 0), ("", "AVX2", 256), ("", "DEFAULT", 0)])
def test_a_switch_and_pytorchs_instruction_set_lower_the_kernels(
    switch: str, capability: str, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ATEN_CPU_CAPABILITY` lowers PyTorch's."""
    monkeypatch.setenv("UAG_PRODUCTS", switch)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    loaded = runpy.run_path(kernel.__file__)
    described = {0: "PyTorch's products (uag's kernel is not in use)", 256: "uag's kernel (AVX2)"}
    assert (loaded["BITS"], loaded["describe"]()) == (bits, described[bits])


@torch.no_grad()
def test_bfloat16_layers_use_the_kernel_only_where_asked() -> None:
    model: Any = nn.Sequential(nn.Linear(SIZE, SIZE)).bfloat16().eval()
    assert len(FastProducts(model)) == 0
    products, x = FastProducts(model, has_half=True), torch.randn(4, SIZE).bfloat16()
    assert len(products) == 1
    with products.in_place():
        in_block = model(x)
        alone = torch.cat([model(row[None]) for row in x])
    assert torch.equal(in_block, alone)
    torch.testing.assert_close(in_block, model(x), rtol=2**-6, atol=2**-6)


@torch.no_grad()
@pytest.mark.parametrize("copied", ["deepcopy", "saved"])
def test_a_copy_made_during_a_call_computes_as_if_made_outside_it(copied: str) -> None:
    model: Any = nn.Sequential(nn.Linear(SIZE, SIZE)).eval()
    x = torch.randn(2, SIZE)
    with FastProducts(model).in_place():
        if copied == "deepcopy":
            twin = copy.deepcopy(model)
        else:
            torch.save(model, file := io.BytesIO())
            assert b"uag" not in file.getvalue()
            file.seek(0)
            twin = torch.load(file, weights_only=False)
        assert torch.equal(twin(x), nn.functional.linear(x, twin[0].weight, twin[0].bias))
        assert twin[0].forward.__self__ is twin[0]
    assert torch.equal(twin(x), model(x))
    assert len(FastProducts(twin)) == 1
    with FastProducts(twin).in_place():
        assert torch.equal(twin(x), forms.pick_form(2)(x, twin[0].weight, twin[0].bias))  # type: ignore[misc]
