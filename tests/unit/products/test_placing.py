"""Fast products are installed temporarily, in one thread and for plain layers; then the model is restored."""

import copy
import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from uag.products import FastProducts, kernel, placing, switched

SIZE = 768  # squared, enough entries for a fast form


class OwnLinear(nn.Linear):
    """A subclass, which could compute anything."""


def model_of(*layers: nn.Module) -> Any:
    return nn.Sequential(*layers).eval()


@pytest.fixture
def fast_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the rows of every product for which a fast form is used; `nn.Linear` computes the product."""
    rows: list[int] = []
    monkeypatch.setattr(placing, "IS_USED", True)
    monkeypatch.setattr(placing, "pick_form", rows.append)
    return rows


@torch.no_grad()
@pytest.mark.parametrize("layer", [nn.Linear(SIZE, 2 * SIZE), nn.Linear(SIZE, SIZE, bias=False)])
def test_plain_layers_take_another_form_and_are_left_as_they_were(layer: Any, fast_rows: list[int]) -> None:
    model, x = model_of(layer), torch.randn(2, 3, SIZE)
    before, expected = set(vars(layer)), model(x)
    with FastProducts(model).in_place():
        product = model(x)
    assert product.equal(expected)
    assert fast_rows == [6]
    assert set(vars(layer)) == before


@torch.no_grad()
def test_forms_are_given_rows_without_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs: list[torch.Tensor] = []

    def form(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        inputs.append(x)
        return torch.nn.functional.linear(x, weight, bias)

    monkeypatch.setattr(placing, "IS_USED", True)
    monkeypatch.setattr(placing, "pick_form", lambda _: form)
    model, x = model_of(nn.Linear(SIZE, SIZE)), torch.randn(8, 4, SIZE)[:, -1:]
    expected = model(x)
    with FastProducts(model).in_place():
        product = model(x)
    torch.testing.assert_close(product, expected, rtol=1e-4, atol=1e-5)
    assert not x.is_contiguous()
    assert all(rows.is_contiguous() for rows in inputs)


def test_what_is_not_plain_is_never_touched(fast_rows: list[int]) -> None:
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
        model_of(nn.Linear(SIZE, placing._MIN_ENTRIES // SIZE - 1)),
        model_of(nn.Linear(SIZE, SIZE).bfloat16()),
        model_of(torch.ao.quantization.quantize_dynamic(model_of(nn.Linear(SIZE, SIZE)))),  # type: ignore[no-untyped-call]
        model_of(nn.Conv1d(SIZE, SIZE, 1)),
        compiled,
        None,
    ]
    assert len(FastProducts(model_of(nn.Linear(SIZE, SIZE)))) == 1
    assert len(FastProducts(model_of(nn.Linear(256, 256)))) == bool(kernel.LEVEL)
    assert [len(FastProducts(model)) for model in models] == [0] * len(models)
    assert not fast_rows


def test_gradients_casts_and_unusual_inputs_keep_the_layers_own_product(fast_rows: list[int]) -> None:
    model = model_of(nn.Linear(SIZE, SIZE))
    layer, x = model[0], torch.randn(2, SIZE)
    with FastProducts(model).in_place():
        model(x).sum().backward()
        assert layer.weight.grad is not None
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            assert model(x).dtype == torch.bfloat16
        with torch.no_grad():
            model(nn.Parameter(x))
            model(x.expand(100, 2, SIZE))  # more rows than the rule covers
            assert model(x[:0]).shape == (0, SIZE)
            assert layer(input=x).equal(torch.nn.functional.linear(x, layer.weight, layer.bias))
            for unusual in (torch.randn(2, 0), torch.randn(()), torch.randn(2, SIZE - 1)):
                with pytest.raises(RuntimeError):
                    model(unusual)
            assert not fast_rows
            model(x)
            layer.double()
            model(x.double())
    assert fast_rows == [2]
    assert "forward" not in vars(layer)


@torch.no_grad()
def test_threads_share_a_model_and_only_those_inside_get_fast_products(fast_rows: list[int]) -> None:
    model, x = model_of(nn.Linear(SIZE, SIZE)), torch.randn(2, SIZE)
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with torch.no_grad(), FastProducts(model).in_place():
            model(x)
            inside.set()
            leave.wait(10)
            model(x)

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(10)
    model(x)
    with switched(False), FastProducts(model).in_place():
        model(x)
    assert len(fast_rows) == 1
    with FastProducts(model).in_place():
        model(x)
        assert len(fast_rows) == 2
    assert "forward" in vars(model[0])  # the other thread is still in its call
    leave.set()
    thread.join()
    assert len(fast_rows) == 3
    assert vars(model[0]).keys() == vars(nn.Linear(1, 1)).keys()


@torch.no_grad()
def test_nested_use(fast_rows: list[int]) -> None:
    model, x = model_of(nn.Linear(SIZE, SIZE)), torch.randn(2, SIZE)
    with FastProducts(model).in_place():
        with FastProducts(model).in_place():
            model(x)
        copied = copy.deepcopy(model)
        model(x)
    assert len(fast_rows) == 2
    copied[0].weight.data.zero_()
    assert not copied(x).equal(model(x))
