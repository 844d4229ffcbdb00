"""Kernels are put in place temporarily, for one thread's passes and for plain layers; then the model is restored."""

import copy
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.utils import parametrizations
from transformers import activations
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.pytorch_utils import Conv1D

from tests.support.forked import interrupted
from tests.support.kernels import needs_kernels
from uag.hf import devices
from uag.kernels import OwnKernels, kernel, operations, placing, switched

SIZE = 48

pytestmark = needs_kernels


class OwnLinear(nn.Linear):
    """A subclass, which could compute anything."""


def model_of(*layers: nn.Module) -> Any:
    return nn.Sequential(*layers).eval()


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    found: list[int] = []
    linear = kernel.linear

    def noting(x: torch.Tensor, weight: Any, bias: Any) -> Any:
        product = linear(x, weight, bias)
        found.extend([] if product is None else [x.numel() // x.shape[-1]])
        return product

    monkeypatch.setattr(kernel, "linear", noting)
    yield found
    for registry in (ALL_ATTENTION_FUNCTIONS, ALL_EXPERTS_FUNCTIONS):
        assert "get_interface" not in vars(registry)
    assert not operations.state.most_rows


def run(model: Any, x: torch.Tensor, most_rows: int | None = None) -> torch.Tensor:
    kernels = OwnKernels(nn.ModuleList([model, nn.Linear(1, 1)]))  # activations alone have no kernels
    with torch.no_grad(), kernels.in_place(), kernels.running(most_rows):
        assert all("forward" in vars(layer) for layer in model if type(layer) in placing._RUN)
        result: torch.Tensor = model(x)
    assert not any("forward" in vars(layer) for layer in model)
    return result


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(SIZE, 2 * SIZE), nn.Linear(SIZE, 3, bias=False), Conv1D(SIZE, SIZE), nn.SiLU(), nn.GELU(),
        nn.GELU("tanh"), activations.SiLUActivation(), activations.GELUActivation(), activations.GELUTanh(),
        activations.QuickGELUActivation(),
    ],
    ids=lambda layer: str(layer),
)  # fmt: skip
def test_a_row_is_the_same_alone_and_in_a_block_and_nearly_that_of_pytorch(layer: Any, dtype: torch.dtype) -> None:
    model, x = model_of(copy.deepcopy(layer).to(dtype)), torch.randn(2, 3, SIZE).to(dtype)
    output = run(model, x)
    rtol, atol = (1.3e-6, 1e-5) if dtype is torch.float32 else (2 * torch.finfo(dtype).eps, 1e-3)  # PyTorch rounds more
    torch.testing.assert_close(output, model(x), rtol=rtol, atol=atol)
    assert output[1, 2].equal(run(model, x[1:, 2:])[0, 0])


def test_only_a_few_rows_where_the_caller_says_so(rows: list[int]) -> None:
    model, x = model_of(nn.Linear(SIZE, SIZE)), torch.randn(2, 8, SIZE)
    assert run(model, x, most_rows=15).equal(model(x))
    run(model, x, most_rows=16)
    run(model, x)
    assert rows == [16, 16]


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layer", [nn.Linear(SIZE, 2 * SIZE), Conv1D(SIZE, SIZE)], ids=str)
def test_half_precision_products_of_a_prompt(layer: Any, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = model_of(copy.deepcopy(layer).to(dtype), nn.SiLU()), torch.randn(2, 300, SIZE).to(dtype)
    kernels, plain = OwnKernels(model), model(x)

    def read(level: str, multiplies: bool) -> torch.Tensor:
        monkeypatch.setattr(kernel, "LEVEL", level)
        monkeypatch.setattr(devices, "multiplies", lambda _: multiplies)
        with kernels.in_place(), kernels.reading():
            output: torch.Tensor = model(x)
        assert model(x).equal(plain)  # outside
        return output

    assert read("AVX2", True).equal(plain)
    assert read("AVX512", False).equal(plain)
    found = read("AVX2", False)
    if dtype is torch.float32:
        assert found.equal(plain)
        return
    expected = nn.functional.silu(run(model_of(model[0]), x))  # the activation stays PyTorch's
    assert found.equal(expected)
    exact = copy.deepcopy(model).float()(x.float())
    assert (found - exact).pow(2).mean() <= 1.02 * (plain - exact).pow(2).mean()


def test_what_is_not_plain_is_never_touched(rows: list[int]) -> None:
    hooked, replaced = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)
    hooked.register_forward_hook(lambda *_: None)
    vars(replaced)["forward"] = lambda x: x
    compiled = model_of(nn.Linear(SIZE, SIZE))
    compiled.compile()
    models = [
        model_of(OwnLinear(SIZE, SIZE)),
        model_of(hooked),
        model_of(replaced),
        model_of(parametrizations.weight_norm(nn.Linear(SIZE, SIZE))),
        model_of(nn.Linear(SIZE, SIZE, device="meta")),
        model_of(nn.Linear(SIZE, SIZE).double()),
        model_of(torch.ao.quantization.quantize_dynamic(model_of(nn.Linear(SIZE, SIZE)))),  # type: ignore[no-untyped-call]
        model_of(nn.Conv1d(SIZE, SIZE, 1)),
        compiled,
        None,
    ]
    assert len(OwnKernels(model_of(nn.Linear(SIZE, SIZE)))) == 1
    assert [len(OwnKernels(model)) for model in models] == [0] * len(models)
    assert all(OwnKernels(model).why_none for model in models)
    with switched(is_on=False):
        assert OwnKernels(model_of(nn.Linear(SIZE, SIZE))).why_none.endswith("(own_kernels=False)")
    assert not rows


def test_gradients_casts_and_unusual_inputs_keep_the_layers_own_product(rows: list[int]) -> None:
    model = model_of(nn.Linear(SIZE, SIZE))
    layer, x, kernels = model[0], torch.randn(2, SIZE), OwnKernels(model)
    with kernels.in_place(), kernels.running():
        model(x).sum().backward()
        assert layer.weight.grad is not None
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            assert model(x).dtype == torch.bfloat16
        with torch.no_grad():
            assert model(x[:0]).shape == (0, SIZE)
            assert layer(input=x).equal(torch.nn.functional.linear(x, layer.weight, layer.bias))
            for unusual in (torch.randn(2, 0), torch.randn(()), torch.randn(2, SIZE - 1)):
                with pytest.raises(RuntimeError):
                    model(unusual)
            layer.double()
            assert model(x.double()).dtype == torch.float64
    assert "forward" not in vars(layer)


def test_transformed_layers_keep_their_own_product(rows: list[int]) -> None:
    class Ensemble(nn.Module):
        """The mean of several layers, as in PyTorch's tutorial on model ensembling."""

        def __init__(self, parts: list[nn.Module]) -> None:
            super().__init__()
            self.base, self.stacked = parts[0], stack_module_state(parts)[0]

        def forward(self, x: torch.Tensor) -> Any:
            return vmap(lambda p, x: functional_call(self.base, p, (x,)), in_dims=(0, None))(self.stacked, x).mean(0)

    model, x = model_of(Ensemble([nn.Linear(SIZE, SIZE) for _ in range(2)])), torch.randn(2, SIZE)
    assert run(model, x).equal(model(x))
    assert not rows


@torch.no_grad()
def test_threads_share_a_model_and_only_those_inside_get_the_kernels(rows: list[int]) -> None:
    model, x = model_of(nn.Linear(SIZE, SIZE)), torch.randn(2, SIZE)
    inside, leave, kernels = threading.Event(), threading.Event(), OwnKernels(model)

    def hold() -> None:
        with torch.no_grad(), OwnKernels(model).in_place(), kernels.running():
            model(x)
            inside.set()
            assert leave.wait(60)
            model(x)

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(60)
    model(x)
    with kernels.in_place():
        model(x)
        assert len(rows) == 1
        with kernels.running():
            model(x)
        assert len(rows) == 2
    assert "forward" in vars(model[0])  # the other thread is still in its call
    leave.set()
    thread.join()
    assert len(rows) == 3
    assert vars(model[0]).keys() == vars(nn.Linear(1, 1)).keys()


@torch.no_grad()
def test_threads_that_enter_and_leave_at_once_never_lose_the_kernels(rows: list[int]) -> None:
    model, x, number, num_threads = model_of(*[nn.Linear(SIZE, SIZE) for _ in range(8)]), torch.randn(2, SIZE), 200, 4

    def work() -> None:
        for _ in range(number):
            kernels = OwnKernels(model)
            with torch.no_grad(), kernels.in_place(), kernels.running():
                model(x)

    threads = [threading.Thread(target=work) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(rows) == number * num_threads * len(model)
    assert not any("forward" in vars(layer) for layer in model)


@torch.no_grad()
@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
def test_an_interrupt_leaves_no_kernel_in_place(rows: list[int], error: type[BaseException]) -> None:
    model, x = model_of(*[nn.Linear(SIZE, SIZE) for _ in range(4)]), torch.randn(2, SIZE)

    kernels = OwnKernels(model)

    def work() -> None:
        with kernels.in_place(), kernels.running():
            model(x)

    for _ in interrupted(work, error=error):
        assert not any("forward" in vars(layer) for layer in model)
        assert "get_interface" not in vars(ALL_ATTENTION_FUNCTIONS)
        assert not operations.state.most_rows
    assert rows


@torch.no_grad()
def test_copies_and_pickles_are_the_layers_own(rows: list[int]) -> None:
    model, x = model_of(nn.Linear(SIZE, SIZE), nn.SiLU()), torch.randn(2, SIZE)
    kernels = OwnKernels(model)
    with kernels.in_place(), kernels.running():
        with OwnKernels(model).in_place():
            model(x)
        copied, pickled = copy.deepcopy(model), pickle.dumps(model)
        model(x)
        assert len(rows) == 2
    loaded = pickle.loads(pickled)
    assert b"uag" not in pickled
    for other in (copied, loaded):
        assert other(x).equal(model(x))
        other[0].weight.data.zero_()
        assert not other(x).equal(model(x))
        assert not run(other, x).equal(model(x))


@torch.no_grad()
@pytest.mark.parametrize(
    "softmax", [torch.softmax, torch.Tensor.softmax, lambda x, dim, dtype: nn.functional.softmax(x, dim, dtype=dtype)]
)
def test_softmax_by_position_keeps_its_dtype(softmax: Any) -> None:
    x, kernels = torch.randn(3, SIZE).bfloat16(), OwnKernels(model_of(nn.Linear(SIZE, SIZE)), everywhere=True)
    with kernels.in_place(), kernels.running(), kernels.running():
        found = softmax(x, -1, torch.float32)
    assert found.dtype is torch.float32
    torch.testing.assert_close(found, torch.softmax(x, -1, torch.float32))


@torch.no_grad()
def test_complex_products_and_sums_of_exponentials_do_not_depend_on_the_block() -> None:
    """As in Llama 4, DeepSeek V2 and Granite SWA."""
    factors = torch.polar(torch.ones(9, 1, 8), torch.randn(9, 1, 8))
    scores = torch.randn(9, 2, 33).masked_fill(torch.ones(9, 1, 33).bool().triu(24), float("-inf"))
    scores[3] = float("-inf")
    given: list[tuple[Any, torch.Tensor]] = [
        (lambda x: x * factors[: len(x)] * 1.5, torch.randn(9, 2, 8, dtype=torch.complex64)),
        (lambda x: torch.mul(input=x * (2 + 1j), other=1j), torch.randn(9, 2, 8, dtype=torch.complex64)),
        (lambda x: torch.baddbmm(x.new_full((), torch.nan), x, x.transpose(1, 2), beta=0), torch.randn(9, 2, 8)),
        (lambda x: torch.logsumexp(x, dim=-1), scores),
        (lambda x: x.logsumexp(-1, keepdim=True), scores),
    ]
    for function, x in given:
        with OwnKernels(model_of(nn.Linear(SIZE, SIZE)), everywhere=True).running():
            found, parts = function(x), [function(x[:n]) for n in (1, 3, 8)]
        torch.testing.assert_close(found, function(x))
        assert all(torch.equal(part, found[: len(part)]) for part in parts)


@torch.no_grad()
@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.bmm(x[0], x[0].T),
        lambda x: torch.bmm(x, x[:1].mT),
        lambda x: torch.baddbmm(x.new_zeros(2, 2, 3, 3), x, x.mT),
        lambda x: torch.baddbmm(torch.ones(3, dtype=torch.long), x, x.mT),
        lambda x: nn.functional.gelu(x, approximate="none of these"),
        lambda x: nn.functional.conv1d(x, x.new_ones(3, 1, 2), x.new_ones(1), groups=3),
        lambda x: nn.functional.scaled_dot_product_attention(x[None], x[None], x[None], x.new_zeros(3)),
        lambda x: nn.functional.scaled_dot_product_attention(x[None], x[None], x[None], x @ x.mT, is_causal=True),
    ],
)
def test_what_pytorch_refuses_is_refused(function: Any) -> None:
    x = torch.randn(2, 3, SIZE)
    with pytest.raises((RuntimeError, IndexError)):
        function(x)
    with (
        OwnKernels(model_of(nn.Linear(SIZE, SIZE)), everywhere=True).running(),
        pytest.raises((RuntimeError, IndexError)),
    ):
        function(x)
