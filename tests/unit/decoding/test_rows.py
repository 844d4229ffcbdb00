"""Rows and stopping, without a model."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import ByT5Tokenizer
from transformers.generation.stopping_criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
)

from uag.decoding.call import Candidates
from uag.decoding.rows import _FIRST_CAPACITY, Rows
from uag.decoding.stopping import Stopping
from uag.proposal import Proposal
from uag.stats import TARGET, Stats

EOS, PAD, PROMPT_LENGTH = 7, 9, 3


class Custom(StoppingCriteria):
    pass


class EndsAtSeven(EosTokenCriteria):
    pass


UNKNOWN = [EndsAtSeven(EOS), Custom()]


def stopping(*criteria: Any) -> Stopping:
    return Stopping(StoppingCriteriaList(criteria))


def rows(*outputs: list[int], max_length: int | None = 8) -> Rows:
    """Rows with these outputs so far."""
    criteria = [EosTokenCriteria(EOS), *([MaxLengthCriteria(max_length)] if max_length else [])]
    prompts = torch.arange(len(outputs) * PROMPT_LENGTH, dtype=torch.int32).reshape(len(outputs), PROMPT_LENGTH)
    config = SimpleNamespace(_pad_token_tensor=torch.tensor(PAD))  # as transformers prepares it
    call: Any = SimpleNamespace(input_ids=prompts, generation_config=config, stopping=stopping(*criteria))
    made = Rows(call)
    for row, ids in enumerate(outputs):
        write(made, row, *ids)
    return made


def write(all_rows: Rows, row: int, *ids: int, source: str = TARGET) -> None:
    """Append output ids as the loop does."""
    start = all_rows.length(row)
    all_rows.reserve(len(all_rows.all[row].outputs) + len(ids))
    all_rows.buffer[row, start : start + len(ids)] = torch.tensor(ids)
    all_rows.all[row].outputs += ids
    all_rows.all[row].sources += [source] * len(ids)


# ---------------------------------------------------------------------- stopping


def test_stopping_smallest_length_and_all_eos_ids_are_collected() -> None:
    found = stopping(MaxLengthCriteria(9), MaxLengthCriteria(5), EosTokenCriteria([1, 2]), EosTokenCriteria(3))
    assert (found.max_length, sorted(found.eos_ids), found.has_eos) == (5, [1, 2, 3], True)
    assert (found.strings, found.has_time_limit, list(found.others)) == ([], False, [])
    assert [found.ends(token_id, 4, None) for token_id in (0, 1, 2, 3)] == [False, True, True, True]
    assert [found.ends(0, length, None) for length in (4, 5, 6)] == [False, True, True]


@pytest.mark.parametrize(
    ("criteria", "others", "has_eos", "has_time_limit"),
    [
        ((), [], False, False),
        ((MaxTimeCriteria(max_time=0.0),), [], False, True),
        # transformers pads where a criterion has an EOS id, of any class
        (UNKNOWN, UNKNOWN, True, False),
    ],
)
def test_stopping_by_time_or_by_unknown_criteria_ends_at_no_token(
    criteria: Any, others: list[Any], has_eos: bool, has_time_limit: bool
) -> None:
    found = stopping(*criteria)
    assert (found.max_length, list(found.others)) == (None, others)
    assert (found.has_eos, found.has_time_limit) == (has_eos, has_time_limit)
    assert not found.ends(EOS, 10**9, None)


def test_stopping_string_ends_only_a_row_whose_text_ends_with_it() -> None:
    tokenizer = ByT5Tokenizer()
    criterion = StopStringCriteria(tokenizer, ["stop"])
    found = stopping(criterion)
    assert found.strings == [criterion]
    for text, ends in (("do stop", True), ("stop it", False), ("do sto", False)):
        ids = tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
        assert found.ends(int(ids[0, -1]), ids.shape[1], ids) is ends
        assert not found.ends(int(ids[0, -1]), ids.shape[1], None)


# ---------------------------------------------------------------------- progress


def test_steps_that_are_passed_and_ready() -> None:
    both = rows([1, 2, 3], [1])
    assert (both.num_passed(), both.num_ready(), both.num_steps()) == (1, 1, 3)
    both.end_at(1, 1)
    assert (both.num_passed(), both.num_ready()) == (3, 3)  # a padded row waits for nothing
    both.end_at(0, 3)
    assert (both.num_passed(), both.num_ready()) == (0, 3)


# ---------------------------------------------------------------------- ids


def test_buffer_is_int64_and_grows_without_losing_ids() -> None:
    both = rows([], [], max_length=None)
    assert both.buffer.dtype == torch.long
    ids = list(range(100, 100 + _FIRST_CAPACITY + 5))
    write(both, 1, *ids)
    assert both.buffer[1, : PROMPT_LENGTH + len(ids)].tolist() == [3, 4, 5, *ids]
    assert both.buffer[0, :PROMPT_LENGTH].tolist() == [0, 1, 2]


def test_candidates_are_written_after_the_outputs_of_their_rows_and_shorter_rows_repeat_their_last_id() -> None:
    both = rows([1], [1, 2], [1])
    both.write(Candidates([1, 2], [[Proposal(50, 1.0), Proposal(51, 1.0)], []]), 2)
    new = both.buffer[:, PROMPT_LENGTH : PROMPT_LENGTH + 4].tolist()
    assert new == [[1, 0, 0, 0], [1, 2, 50, 51], [1, 1, 1, 0]]
    assert both.last([1, 2], 3).tolist() == [[2, 50, 51], [1, 1, 1]]
    assert both.all[1].outputs == [1, 2]


def test_ids_of_a_step_are_a_copy() -> None:
    both = rows([1], [1])
    both.ids_at(1).fill_(0)
    assert both.buffer[0, : PROMPT_LENGTH + 1].tolist() == [0, 1, 2, 1]


def test_rounds_after_the_end_of_a_row_are_not_counted() -> None:
    one = rows([1])
    write(one, 0, 2, 3, source="draft model")
    write(one, 0, EOS)
    write(one, 0, 5, 6, source="draft model")
    one.all[0].rounds = [(["draft model"] * 4, 1, 4), (["draft model"] * 4, 4, 6)]
    one.end_at(0, 4)
    stats = Stats()
    stats.start(1)
    one.count(stats)
    assert (stats.rows[0].num_rounds, stats.num_accepted_tokens, stats.num_output_tokens) == (1, 2, 4)


def test_candidates_of_no_row_are_as_wide_as_the_last_known_token() -> None:
    assert Candidates([], []).width == 1
