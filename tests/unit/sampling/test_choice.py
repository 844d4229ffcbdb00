"""The selection rules, against PyTorch's own functions."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.adapters.strategies import SETTINGS
from uag.sampling.choice import argmax


@SETTINGS
@given(st.lists(st.sampled_from([0.0, 1.0, 2.0, float("inf"), float("-inf"), float("nan")]), min_size=1, max_size=40))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_argmax_is_pytorchs_with_ties_and_nan(dtype: torch.dtype, values: list[float]) -> None:
    scores = torch.tensor([values, values[::-1]], dtype=dtype)
    assert argmax(scores).tolist() == torch.argmax(scores, dim=-1).tolist()
