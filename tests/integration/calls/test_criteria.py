"""Stopping criteria are called once per step with plain decoding's arguments, and time limits end a call."""

import copy
import sys
from typing import Any

import numpy as np
import pytest
import torch
from transformers import StoppingCriteria
from transformers.generation import stopping_criteria as criteria_module

from tests.support.callers import EndsAt, Puts, Watches
from tests.support.calls import (
    GREEDY,
    NEW,
    PROMPTS,
    ROWS,
    SAMPLED,
    assistant_of,
    compare,
    left_padded,
    num_drafted,
    oracle,
    pair,
    seeded,
)
from tests.support.grids import covering

SCORES = {"return_dict_in_generate": True, "output_scores": True}


class Remembers(StoppingCriteria):
    """Records its arguments, and ends a row at its second multiple of three."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[list[int]], Any, list[str]]] = []
        self.count: torch.Tensor | None = None

    def __call__(self, input_ids: torch.Tensor, scores: Any, **given: Any) -> torch.Tensor:
        shapes = None if scores is None else [tuple(part.shape) for part in scores]
        self.calls.append((input_ids.tolist(), shapes, sorted(given)))
        now = (input_ids[:, -1] % 3 == 0).long()
        self.count = now if self.count is None else self.count + now
        return self.count >= 4


@covering("eos, outputs, num_rows, options", (False, True), ({}, SCORES), (1, 3), (GREEDY, SAMPLED))
def test_criteria_called_per_step(eos: bool, outputs: dict[str, Any], num_rows: int, options: dict[str, Any]) -> None:
    target = pair(eos=eos)[0]
    given = left_padded(PROMPTS[:num_rows]) | options | outputs | {"stopping_criteria": [Remembers()]}
    assert compare(target, given, assistant_of(eos=eos)).num_candidate_tokens > 0
    for spoil in (0, 5):  # of an oracle, with which rows are ahead of others
        stats = compare(target, given, spoil=spoil)
        assert [row.num_accepted_tokens for row in stats.rows] == [num_drafted(row) for row in stats.sources]


def test_criteria_hold_no_row_back() -> None:
    """In lockstep, rows wait for the slowest; independently, each advances as far as its own candidates allow."""
    target, tokenizer = pair()[:2]
    inputs = left_padded(PROMPTS)
    width = inputs["input_ids"].shape[1]
    given = {**inputs, **GREEDY, "max_new_tokens": 54}
    assistant = oracle(target, tokenizer, target.generate(**given), width)
    assistant.generate(target, **given)
    alone = assistant.stats
    assistant.generate(target, **given, stopping_criteria=[Watches()])
    assert assistant.stats.num_rounds == alone.num_rounds
    assert assistant.stats.num_accepted_tokens == alone.num_accepted_tokens > 80
    assert not assistant.stats.fallbacks


class Clock:
    """A clock that stands still until the target has run `passes` times."""

    def __init__(self, target: Any, passes: int) -> None:
        self.num = 0
        self.passes = passes
        self.handle = target.register_forward_pre_hook(self.count)

    def count(self, *_: Any) -> None:
        self.num += 1

    def time(self) -> float:
        return 0.0 if self.num < self.passes else 1e6


@ROWS
@pytest.mark.parametrize("passes", [1, 3])
def test_max_time(num_rows: int, passes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    target = pair()[0]
    inputs = left_padded(PROMPTS[:num_rows])
    width = inputs["input_ids"].shape[1]
    whole = target.generate(**inputs, **GREEDY)
    for streamer in (None, Puts()):
        clock = Clock(target, passes)
        monkeypatch.setattr(criteria_module, "time", clock)
        assistant = assistant_of()
        assistant.options.trust_changes = True  # the clock's hook
        try:
            output = assistant.generate(target, **inputs, **GREEDY, max_time=10.0, streamer=streamer)
        finally:
            clock.handle.remove()
            monkeypatch.undo()
        num = output.shape[1] - width
        assert output.tolist() == whole[:, : width + num].tolist()
        assert num == 1 if passes == 1 else 0 < num < NEW
        assert clock.num == passes, "another pass after the time was over"
        assert (assistant.stats.num_candidate_tokens > 0) == (passes > 1)
        assert streamer is None or len(streamer.puts) == num + 1


LIMITS = (12.0, 12.5, np.float64(12), np.int32(12), float("inf"), 10**30, sys.maxsize, torch.tensor(12))


@covering(
    "limit, name, num_rows, options", LIMITS, ("max_new_tokens", "max_length"), (1, 3), (GREEDY, SAMPLED), strength=1
)
def test_limits_of_other_types(name: str, limit: Any, num_rows: int, options: dict[str, Any]) -> None:
    target = pair()[0]
    given = left_padded(PROMPTS[:num_rows]) | options | {"stopping_criteria": [EndsAt(18)]}
    del given["max_new_tokens"]
    try:
        expected = seeded(3, target.generate, **copy.deepcopy(given), **{name: limit})
    except Exception as error:  # noqa: BLE001 - whatever transformers raises
        with pytest.raises(type(error)):
            oracle(target, None, torch.zeros((num_rows, 20)), 7).generate(target, **given, **{name: limit})
        return
    assistant = oracle(target, None, expected, given["input_ids"].shape[1])
    assert compare(target, given | {name: limit}, assistant).num_accepted_tokens > 0


class EndsRows(StoppingCriteria):
    """Ends rows one by one: the first at its third id, the next at its sixth, and all others at `last`."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.calls: list[list[list[int]]] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        self.calls.append(input_ids.tolist())
        num_steps = len(self.calls)
        ends = [3, 6, self.last][: input_ids.shape[0]]
        return torch.tensor([num_steps >= end for end in ends])


@covering("last, eos, options", (7, 11, 14, NEW + 1), (False, True), (GREEDY, SAMPLED))
def test_a_criterion_that_ends_rows_that_are_ahead(last: int, eos: bool, options: dict[str, Any]) -> None:
    target = pair(eos=eos)[0]
    given = left_padded(PROMPTS) | options
    whole = seeded(5, target.generate, **given)
    assistant = oracle(target, pair()[1], whole, given["input_ids"].shape[1])
    stats = compare(target, given | {"stopping_criteria": [EndsRows(last)]}, assistant, seed=5)
    assert 0 < stats.num_accepted_tokens <= stats.num_candidate_tokens
    for row, sources, end in zip(stats.rows, stats.sources, [3, 6, min(last, NEW)], strict=True):
        assert row.num_output_tokens == len(sources) <= end
        assert row.num_accepted_tokens == num_drafted(sources)
    assert stats.num_accepted_tokens == sum(stats.accepted_by_source.values())
