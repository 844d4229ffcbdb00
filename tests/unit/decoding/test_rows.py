"""`Rows`: where rows end, and which output steps are final for all rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria, StoppingCriteriaList

from uag.decoding.rows import Rows
from uag.decoding.stopping import Stopping

EOS, PAD = 9, 0


def rows_of(*outputs: list[int], eos: bool = True, max_length: int = 8) -> Rows:
    """Rows with a prompt of two ids and these outputs."""
    config: Any = GenerationConfig()
    config._pad_token_tensor = torch.tensor(PAD)
    criteria = StoppingCriteriaList([MaxLengthCriteria(max_length)])
    if eos:
        criteria.append(EosTokenCriteria(EOS))
    call: Any = SimpleNamespace(input_ids=torch.full((len(outputs), 2), 5), generation_config=config)
    rows = Rows(call, Stopping(criteria))
    for row, ids in enumerate(outputs):
        rows.all[row].outputs = list(ids)
        rows.all[row].sources = ["target"] * len(ids)
        rows.buffer[row, 2 : 2 + len(ids)] = torch.tensor(ids)
        rows.all[row].end = next((n for n, i in enumerate(ids, 1) if rows.stopping.ends(i, 2 + n, None)), 0)
    return rows


def test_a_step_is_final_once_all_active_rows_have_passed_it() -> None:
    rows = rows_of([3, 4, 6], [3, EOS], [3])
    assert (rows.active(), rows.num_passed(), rows.num_ready()) == ([0, 2], 1, 1)
    assert not rows.have_ended()
    assert rows.ids_at(1).tolist() == [[5, 5, 3]] * 3


def test_finished_rows_are_padded() -> None:
    rows = rows_of([3, 4, EOS], [3, EOS])
    assert (rows.active(), rows.num_ready(), rows.num_steps()) == ([], 3, 3)
    assert rows.have_ended()
    assert rows.ids_at(rows.num_steps()).tolist() == [[5, 5, 3, 4, EOS], [5, 5, 3, EOS, PAD]]
    assert [rows.budget(row) for row in (0, 1)] == [0, 0]


def test_a_row_that_is_ahead_can_be_ended_earlier() -> None:
    rows = rows_of([3, 4, 6, 7], [3, 4])
    rows.end_at(0, 2)
    assert rows.all[0].outputs == [3, 4]
    assert rows.active() == [1]
    rows.end_at(1, 2)
    assert rows.num_ready() == 2


def test_without_eos_finished_rows_are_written_to_the_last_step() -> None:
    rows = rows_of([3, 4, 6], [3, 4], eos=False)
    rows.end_at(0, 3)
    rows.end_at(1, 1)
    assert rows.active() == [0, 1]  # neither is at the maximum length
    assert not rows.have_ended()
    assert rows.num_ready() == 2
    rows.all[1].outputs.append(8)
    assert rows.have_ended()
    assert rows.num_ready() == 3


def test_the_budget_leaves_a_token_to_the_target() -> None:
    rows = rows_of([3], [3, 4, 6, 7, 8])
    assert [rows.budget(row) for row in (0, 1)] == [4, 0]
