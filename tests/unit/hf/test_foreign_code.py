"""Foreign code around a model's passes is described; torch's own and unrelated changes are not."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from torch import nn
from torch.nn.utils import parametrizations
from torch.overrides import TorchFunctionMode

from uag.hf.foreign_code import changes


def replaced_forward(model: Any) -> Any:
    model[0].forward = lambda x: x
    return nullcontext()


Counts = type("Counts", (TorchFunctionMode,), {"__module__": "mine"})
FOREIGN: dict[str, Callable[[Any], Any]] = {
    "a forward hook on Linear": lambda model: model[0].register_forward_hook(lambda *_: None),
    "a forward hook on all": lambda _: nn.modules.module.register_module_forward_hook(lambda *_: None),
    "the active mode Counts": lambda _: Counts(),
    "forward of Linear": replaced_forward,
}


@pytest.mark.parametrize("expected", FOREIGN)
def test_foreign_code_is_described(expected: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    assert changes(model) == ""
    with FOREIGN[expected](model):
        assert changes(model).startswith(expected)


def test_code_of_torch_and_functions_outside_passes_are_no_change() -> None:
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(2, 2)))
    model.extra_repr = lambda: "mine"  # type: ignore[method-assign]
    model.register_forward_hook(nn.Module.to)  # type: ignore[arg-type]
    assert changes(model) == ""
