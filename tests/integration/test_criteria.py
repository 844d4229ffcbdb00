"""Stopping criteria are called once per step with what plain decoding hands them, and time ends a call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.generation import stopping_criteria as criteria_module

from tests.support.calls import GREEDY, NEW, PROMPTS, SAMPLED, Puts, assistant_of, left_padded, pair, seeded
from uag.decoding import stopping


class Remembers(StoppingCriteria):
    """Keeps what it was called with; ends a row at its second multiple of three."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[list[int]], Any, list[str]]] = []
        self.count: torch.Tensor | None = None

    def __call__(self, input_ids: torch.Tensor, scores: Any, **given: Any) -> torch.Tensor:
        shapes = None if scores is None else [tuple(part.shape) for part in scores]
        self.calls.append((input_ids.tolist(), shapes, sorted(given)))
        now = (input_ids[:, -1] % 3 == 0).long()
        self.count = now if self.count is None else self.count + now
        return self.count >= 4


@pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("outputs", [{}, {"return_dict_in_generate": True, "output_scores": True}], ids=["", "scores"])
@pytest.mark.parametrize("eos", [False, True])
def test_criteria_are_called_once_per_step(
    eos: bool, outputs: dict[str, Any], num_rows: int, options: dict[str, Any]
) -> None:
    target = pair(eos=eos)[0]
    given = {**left_padded(PROMPTS[:num_rows]), **options, **outputs}
    expected, found = Remembers(), Remembers()
    seeded(5, target.generate, **given, stopping_criteria=StoppingCriteriaList([expected]))
    assistant = assistant_of(eos=eos)
    seeded(5, assistant.generate, target, **given, stopping_criteria=StoppingCriteriaList([found]))
    assert found.calls == expected.calls
    assert assistant.stats.num_candidate_tokens > 0


class Clock:
    """Time that stands still until the target has run `passes` times."""

    def __init__(self, target: Any, passes: int) -> None:
        self.num = 0
        self.passes = passes
        self.handle = target.register_forward_pre_hook(self.count)

    def count(self, *_: Any) -> None:
        self.num += 1

    def time(self) -> float:
        return 0.0 if self.num < self.passes else 1e6


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("passes", [1, 3])
def test_max_time(num_rows: int, passes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    target = pair()[0]
    inputs = left_padded(PROMPTS[:num_rows])
    width = inputs["input_ids"].shape[1]
    whole = target.generate(**inputs, **GREEDY)
    for streamer in (None, Puts()):
        clock = Clock(target, passes)
        monkeypatch.setattr(criteria_module, "time", clock)
        monkeypatch.setattr(stopping, "time", clock)
        try:
            output = assistant_of().generate(target, **inputs, **GREEDY, max_time=10.0, streamer=streamer)
        finally:
            clock.handle.remove()
            monkeypatch.undo()
        num = output.shape[1] - width
        assert output.tolist() == whole[:, : width + num].tolist()
        assert 0 < num < NEW
        assert clock.num == passes, "another pass after the time was over"
        assert streamer is None or len(streamer.puts) == num + 1


def test_max_time_is_over_at_once() -> None:
    target = pair()[0]
    for num_rows in (1, 3):
        given = {**left_padded(PROMPTS[:num_rows]), **GREEDY, "max_time": 1e-9}
        assert assistant_of().generate(target, **given).tolist() == target.generate(**given).tolist()
