"""Temporary evaluation mode: training modes are restored, also with several threads on one model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from uag.hf.evaluation import in_evaluation, is_training


def parts() -> nn.Sequential:
    """A model with one part in training mode."""
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 3)).eval()
    model[0].train()
    return model


def test_what_was_training_trains_again() -> None:
    model = parts()
    inputs = torch.ones(4, 3)
    expected = model.eval()(inputs)
    model[0].train()

    def fails() -> None:
        with in_evaluation(model):
            assert not any(module.training for module in model.modules())
            assert not is_training(model)
            assert model(inputs).equal(expected)
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert [module.training for module in model.modules()] == [False, True, False]
    assert is_training(model)
    with in_evaluation(model.eval()):
        assert not is_training(model)
