"""Recurrences run token by token, while everything around them runs once for a block; convolutions sum in one order."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache

from tests.support.kernels import needs_kernels
from tests.support.models import HYBRID_DRAFTS, tiny_model
from uag.hf.cache.caches import CACHE_INPUTS
from uag.hf.inspection import modules
from uag.hf.wrapped import inputs_of
from uag.kernels import OwnKernels, kernel, recurrences

pytestmark = needs_kernels

NAMES = "lfm2", "qwen3_5", "mamba2", "granitemoehybrid"
IDS = torch.arange(3, 40)[None]


class Count(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.name()] += not func.is_view
        return func(*args, **(kwargs or {}))


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    counts: Counter[str] = Counter()
    run = kernel._run

    def noting(function: str, arguments: bytes) -> bool:
        counts[function] += 1
        return run(function, arguments)

    monkeypatch.setattr(kernel, "_run", noting)
    return counts


def logits_of(target: Any, widths: list[int], most_rows: int | None = None) -> tuple[torch.Tensor, Counter[str]]:
    """Return the logits after a prompt of six tokens, and the operations of the last pass."""
    name = next(name for name in CACHE_INPUTS if name in inputs_of(target))
    cache, kernels, start = DynamicCache(config=target.config), OwnKernels(target).replacing_functions(), 6
    found = []
    with torch.no_grad(), kernels.in_place():
        target(input_ids=IDS[:, :start], **{name: cache})
        for width in widths:
            with kernels.running(most_rows), Count() as count:
                found.append(target(input_ids=IDS[:, start : start + width], **{name: cache}).logits)
            start += width
    return torch.cat(found, dim=1), count.counts


@pytest.mark.parametrize("name", NAMES)
def test_a_block_runs_each_product_once_and_costs_less_than_its_tokens(name: str, products: Counter[str]) -> None:
    target = tiny_model(HYBRID_DRAFTS[name][0], 300, **HYBRID_DRAFTS[name][1])
    before = [vars(part).copy() for part in modules(target)]
    alone, one = logits_of(target, [1, 1, 1, 1])
    of_tokens = products.copy()
    products.clear()
    block, four = logits_of(target, [4])
    assert torch.equal(block, alone)
    assert of_tokens["rows_linear"] == 4 * products["rows_linear"] > 0
    assert four.total() < 4 * one.total()
    assert "aten::convolution" not in four
    assert [vars(part) for part in modules(target)] == before


def test_a_pass_of_more_rows_than_asked_for_is_transformers_own() -> None:
    target = tiny_model(HYBRID_DRAFTS["qwen3_5"][0], 300)
    name = "aten::linalg_solve_triangular"
    assert not logits_of(target, [4], most_rows=4)[1][name]
    assert logits_of(target, [4], most_rows=3)[1][name] == logits_of(target, [4], most_rows=1)[1][name]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("groups", "has_bias"), [(12, True), (12, False), (3, True), (1, False)])
def test_a_convolution_has_the_same_bits_for_any_length(dtype: torch.dtype, groups: int, has_bias: bool) -> None:
    layer = torch.nn.Conv1d(12, 12, 4, groups=groups, padding=3, bias=has_bias).to(dtype)
    x = torch.randn(2, 12, 9, dtype=dtype)
    kernels = OwnKernels(torch.nn.ModuleList([layer, torch.nn.Linear(1, 1)])).replacing_functions()
    with torch.no_grad(), kernels.in_place(), kernels.running(), Count() as count:
        whole = layer(x)[..., :9]
        parts = [functional.conv1d(functional.pad(x, (3, 0))[..., i : i + 4], layer.weight, layer.bias, groups=groups)
                 for i in range(9)]  # fmt: skip
        assert not count.counts["aten::convolution"]
        strided = functional.conv1d(x, layer.weight, layer.bias, stride=2, groups=groups)
        assert count.counts["aten::convolution"] == 1
    assert torch.equal(whole, torch.cat(parts, dim=2))
    torch.testing.assert_close(whole, layer(x)[..., :9])
    assert strided.shape == (2, 12, 3)


@pytest.mark.parametrize(
    ("x", "weight", "groups"),
    [
        (torch.ones(2, 3, 1), torch.ones(3, 1, 2), 3),
        (torch.ones(2, 3, 4).bfloat16(), torch.ones(3, 1, 2), 3),
        (torch.ones(2, 3, 4), torch.ones(3, 2, 2), 3),
    ],
    ids=["too short", "two dtypes", "too many channels"],
)
def test_a_convolution_that_pytorch_refuses_is_left_to_it(x: torch.Tensor, weight: torch.Tensor, groups: int) -> None:
    kernels = OwnKernels(torch.nn.Linear(1, 1)).replacing_functions()
    with torch.no_grad(), kernels.in_place(), kernels.running(), pytest.raises(RuntimeError):
        functional.conv1d(x, weight, groups=groups)


def test_a_forward_that_is_replaced_later_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("qwen3_5", 700)
    kind = next(type(layer) for layer in model.modules() if recurrences.stepped(type(layer)))
    forward = kind.forward
    monkeypatch.setattr(kind, "forward", lambda self, *args, **kwargs: forward(self, *args, **kwargs))
    assert recurrences.stepped(kind) is None
    assert recurrences.stepped(type(torch.jit.script(torch.nn.SiLU()))) is None
