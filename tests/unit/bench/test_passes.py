"""Passes are counted by their width, and timed at every width that fits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.models import tiny_llama, tiny_model
from tests.support.stubs import StubTarget
from uag.bench import time_passes
from uag.bench.passes import num_candidates, pass_widths


def test_counter_sees_passes_and_candidates() -> None:
    target = StubTarget()
    with pass_widths(target) as widths:
        for width in (7 + 2, 1 + 3, 1):  # a prompt of 7 with 2 candidates, then 3, then none
            target(input_ids=torch.zeros(1, width, dtype=torch.long))
    target(input_ids=torch.zeros(1, 1, dtype=torch.long))  # not counted any more
    assert widths == [9, 4, 1]
    assert num_candidates(widths, 7) == 5


SMALL = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}


@pytest.mark.parametrize(
    "model",
    [tiny_llama(100), tiny_model("gpt2", 100, n_embd=16, n_layer=1, n_head=2), tiny_model("t5", 100, **SMALL)],
    ids=lambda model: type(model).__name__,
)
def test_passes_of_every_width_are_timed(model: Any) -> None:
    medians = time_passes(model, list(range(80)), (1, 3, 9))
    assert list(medians) == [1, 3, 9]
    assert min(medians.values()) > 0


def test_widths_beyond_the_models_positions_are_left_out() -> None:
    assert list(time_passes(tiny_llama(100, max_positions=32), list(range(80)), (1, 3, 33))) == [1, 3]
