"""Fast products are in place for a while, in one thread, for plain layers; the model is then as it was."""

import copy
import io
import pickle
import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from transformers.pytorch_utils import Conv1D

from uag.products import FastProducts, placing, switched
from uag.products.forms import as_is

SIZE = 512  # squared, the fewest entries that are looked at


class OwnLinear(nn.Linear):
    """A layer of somebody's own."""


def model_of(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers).eval()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, tuple[int, ...]]]:
    """Every product that took the fast way: its rows and its weights' shape."""
    found: list[tuple[int, tuple[int, ...]]] = []

    def choose(x: torch.Tensor, weight: torch.Tensor, pages: Any) -> Any:
        assert any(page.data_ptr() == weight.data_ptr() for page in pages)
        found.append((x.shape[0], tuple(weight.shape)))
        return as_is

    monkeypatch.setattr(placing, "choose", choose)
    return found


@torch.no_grad()
@pytest.mark.parametrize(
    "layer", [nn.Linear(SIZE, 2 * SIZE), nn.Linear(SIZE, SIZE, bias=False), Conv1D(2 * SIZE, SIZE)]
)
def test_plain_layers_take_the_fast_way_and_are_left_as_they_were(layer: Any, asked: list[Any]) -> None:
    model, x = model_of(layer), torch.randn(2, 3, SIZE)
    before, expected = set(vars(layer)), model(x)
    with FastProducts(model).in_place():
        product = model(x)
    assert product.equal(expected)
    assert asked == [(6, (expected.shape[-1], SIZE))]
    assert set(vars(layer)) == before


@torch.no_grad()
def test_forms_are_given_rows_without_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[torch.Tensor] = []

    def form(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        given.append(x)
        return as_is(x, weight, bias)

    monkeypatch.setattr(placing, "choose", lambda *_: form)
    model, x = model_of(nn.Linear(SIZE, SIZE)), torch.randn(8, 4, SIZE)[:, -1:]
    with FastProducts(model).in_place():
        assert model(x).equal(model[0](x))  # type: ignore[index]
    assert not x.is_contiguous()
    assert all(rows.is_contiguous() for rows in given)


@torch.no_grad()
def test_real_forms_agree_with_the_layer() -> None:
    model = model_of(nn.Linear(SIZE, SIZE), nn.GELU(), Conv1D(SIZE, SIZE), nn.Linear(SIZE, SIZE, bias=False))
    for num_rows in (1, 2, 5, 40, 65):
        x = torch.randn(num_rows, SIZE)
        with FastProducts(model).in_place():
            product = model(x)
        torch.testing.assert_close(product, model(x), rtol=1e-4, atol=1e-5)


def test_what_is_not_plain_is_never_touched(asked: list[Any]) -> None:
    hooked = nn.Linear(SIZE, SIZE)
    hooked.register_forward_hook(lambda *_: None)
    replaced = nn.Linear(SIZE, SIZE)
    vars(replaced)["forward"] = lambda x: x
    quantized = torch.ao.quantization.quantize_dynamic(model_of(nn.Linear(SIZE, SIZE)))  # type: ignore[no-untyped-call]
    layers = [
        OwnLinear(SIZE, SIZE),
        hooked,
        replaced,
        parametrizations.weight_norm(nn.Linear(SIZE, SIZE)),
        nn.Linear(SIZE, SIZE, device="meta"),
        nn.Linear(SIZE, SIZE // 2),
        nn.Linear(SIZE, SIZE).bfloat16(),
        quantized,
        nn.Conv1d(SIZE, SIZE, 1),
    ]
    assert not len(FastProducts(model_of(*layers)))
    compiled = model_of(nn.Linear(SIZE, SIZE))
    compiled.compile()
    assert not len(FastProducts(compiled))
    assert not len(FastProducts())
    assert not asked


def test_gradients_casts_and_foreign_tensors_take_the_layers_own_way(asked: list[Any]) -> None:
    model = model_of(nn.Linear(SIZE, SIZE))
    x = torch.randn(2, SIZE)
    with FastProducts(model).in_place():
        model(x).sum().backward()
        assert model[0].weight.grad is not None  # type: ignore[index]
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            assert model(x).dtype == torch.bfloat16
        with torch.no_grad():
            model(nn.Parameter(x))
            model(x.expand(100, 2, SIZE))  # more rows than are worth it
            assert model(x[:0]).shape == (0, SIZE)
            assert not asked
            model(x)
    assert len(asked) == 1


@torch.no_grad()
def test_an_error_midway_leaves_nothing_behind() -> None:
    model = model_of(nn.Linear(SIZE, SIZE))
    with pytest.raises(RuntimeError), FastProducts(model).in_place():
        model(torch.randn(2, SIZE + 1))
    assert "forward" not in vars(model[0])  # type: ignore[index]


@torch.no_grad()
def test_threads_share_a_model_and_only_those_that_ask_get_fast_products(asked: list[Any]) -> None:
    model, x = model_of(nn.Linear(SIZE, SIZE)), torch.randn(2, SIZE)
    layer: Any = model[0]  # type: ignore[index]
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
    assert len(asked) == 1
    with FastProducts(model).in_place():
        model(x)
        assert len(asked) == 2
    assert "forward" in vars(layer)  # the other thread is not done
    leave.set()
    thread.join()
    assert len(asked) == 3
    assert "forward" not in vars(layer)


@torch.no_grad()
def test_a_thread_that_switched_them_off_gets_none_from_another(asked: list[Any]) -> None:
    model, x = model_of(nn.Linear(SIZE, SIZE)), torch.randn(2, SIZE)
    with FastProducts(model).in_place(), switched(False), FastProducts(model).in_place():
        model(x)
    assert not asked


@torch.no_grad()
def test_inputs_by_name_and_odd_ones_reach_the_layer(asked: list[Any]) -> None:
    layer = nn.Linear(SIZE, SIZE)
    x = torch.randn(2, SIZE)
    with FastProducts(model_of(layer)).in_place():
        assert layer(input=x).equal(torch.nn.functional.linear(x, layer.weight, layer.bias))
        for odd in (torch.randn(2, 0), torch.randn(()), torch.randn(2, SIZE - 1)):
            with pytest.raises(RuntimeError):
                layer(odd)
        layer.double()
        layer(x.double())
    assert not asked


@torch.no_grad()
def test_a_model_saved_meanwhile_loads_without_this_package() -> None:
    model = model_of(nn.Linear(SIZE, SIZE))
    with FastProducts(model).in_place():
        saved = pickle.dumps(model)
    assert b"uag" not in saved
    x = torch.randn(2, SIZE)
    assert pickle.loads(saved)(x).equal(model(x))


@torch.no_grad()
def test_they_can_be_switched_off(asked: list[Any]) -> None:
    model, x = model_of(nn.Linear(SIZE, SIZE)), torch.randn(2, SIZE)
    with switched(False), FastProducts(model).in_place():
        model(x)
        with switched(True), FastProducts(model).in_place():
            model(x)
        model(x)
    assert len(asked) == 1
    with FastProducts(model).in_place():
        model(x)
    assert len(asked) == 2


@torch.no_grad()
def test_nested_use_and_copies_keep_working(asked: list[Any]) -> None:
    model, x = model_of(nn.Linear(SIZE, SIZE)), torch.randn(2, SIZE)
    with FastProducts(model).in_place():
        with FastProducts(model).in_place():
            model(x)
        model(x)
        copied = copy.deepcopy(model)
    assert len(asked) == 2
    assert copied(x).equal(model(x))
    assert len(asked) == 2
    file = io.BytesIO()
    with FastProducts(model).in_place():
        torch.save(model, file)
    file.seek(0)
    for other in (copied, torch.load(file, weights_only=False)):
        assert vars(other[0]).keys() == vars(model[0]).keys()  # type: ignore[index]
    copied[0].weight.data.zero_()  # type: ignore[index]
    assert not copied(x).equal(model(x))
