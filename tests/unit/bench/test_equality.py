"""The first difference of two outputs."""

import torch

from tests.support.stubs import StubTokenizer
from uag.bench.equality import Difference, first_difference


def test_first_difference_is_the_earliest_step_of_any_row() -> None:
    plain = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    arm = torch.tensor([[1, 2, 3, 9], [5, 0, 7, 8]])
    assert first_difference(plain, plain.clone()) is None
    assert first_difference(plain, arm) == Difference(row=1, step=1, plain_id=6, arm_id=0)
    difference = first_difference(torch.tensor([[1]]), torch.tensor([[1, 65]]))  # the arm's output goes on
    assert difference == Difference(row=0, step=1, plain_id=None, arm_id=65)
    assert difference.describe(StubTokenizer()) == "row 0, output token 1: 'A' where plain decoding has the end"
