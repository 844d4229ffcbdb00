"""Passes and candidates are counted by the widths of the passes."""

from __future__ import annotations

import torch

from tests.support.stubs import StubTarget
from uag.bench.passes import num_candidates, pass_widths


def test_counter_sees_passes_and_candidates() -> None:
    target = StubTarget()
    with pass_widths(target) as widths:
        for width in (7 + 2, 1 + 3, 1):  # a prompt of 7 with 2 candidates, then 3, then none
            target(input_ids=torch.zeros(1, width, dtype=torch.long))
    target(input_ids=torch.zeros(1, 1, dtype=torch.long))  # not counted any more
    assert widths == [9, 4, 1]
    assert num_candidates(widths, 7) == 5
