"""Passes that leave no trace in a model's modules, hooks and random state."""

from __future__ import annotations

import threading

import torch
from torch import nn

from uag.hf.undisturbed import undisturbed


class Stateful(nn.Module):
    """Changes whatever a forward can change."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        super().__init__()
        self.table: torch.Tensor = nn.Buffer(torch.zeros(3))
        self.loose = torch.zeros(2)
        self.length: torch.Tensor | int = 4
        self.seen: list[int] = [1]
        self.known = {"a": 1}

    def forward(self, size: int) -> torch.Tensor:
        self.length = torch.tensor(size)
        self.table.add_(1.0)
        self.table = torch.full((5,), 2.0)
        self.loose.mul_(0).add_(7.0)
        self.seen.append(size)
        self.known.clear()
        self.made = nn.Linear(1, 1)
        self.register_buffer("extra", torch.ones(1))
        self.attribute = "new"
        return torch.rand(size)


def test_everything_is_put_back() -> None:
    model, state = Stateful(), torch.get_rng_state()
    table, loose, names = model.table, model.loose, set(vars(model))
    with undisturbed(model):
        model(3)
        assert model.table.shape == (5,)
    assert model.table is table
    assert model.loose is loose
    assert table.tolist() == [0.0, 0.0, 0.0]
    assert loose.tolist() == [0.0, 0.0]
    assert (model.length, model.seen, model.known) == (4, [1], {"a": 1})
    assert set(vars(model)) == names
    assert [name for name, _ in model.named_modules()] == [""]
    assert [name for name, _ in model.named_buffers()] == ["table"]
    assert torch.equal(torch.get_rng_state(), state)


def test_also_after_an_error() -> None:
    model = Stateful()
    try:
        with undisturbed(model):
            model(3)
            raise KeyError
    except KeyError:
        pass
    assert model.seen == [1]


def test_hooks_of_others_see_other_threads_only() -> None:
    model, seen = Stateful(), []
    model.register_forward_pre_hook(lambda *_: seen.append("before"))
    model.register_forward_hook(lambda *_: seen.append("after"))
    hooks = list(model._forward_hooks.values())
    with undisturbed(model):
        model(1)
        assert seen == []
        thread = threading.Thread(target=model, args=(1,))
        thread.start()
        thread.join()
    assert seen == ["before", "after"]
    assert list(model._forward_hooks.values()) == hooks
    model(1)
    assert len(seen) == 4
