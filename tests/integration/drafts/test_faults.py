"""Stalls of the clock in real calls: the draft is in use again afterwards. Clocks tick once per reading."""

import pytest

import uag
from tests.support.grids import covering
from tests.support.trained import demo
from uag.decoding import drafts, target
from uag.lookahead import Lookahead


class Clock:
    """A clock on which each pass takes one tick, and a few readings come late."""

    def __init__(self, tick_s: float, stalls: range = range(0), stall_s: float = 0.0) -> None:
        self.tick_s, self.stalls, self.stall_s = tick_s, stalls, stall_s
        self.num_readings, self.time_s = 0, 0.0

    def now(self) -> float:
        self.time_s += self.tick_s + (self.stall_s if self.num_readings in self.stalls else 0.0)
        self.num_readings += 1
        return self.time_s


@covering("place, stalled, stall_s", (1, 5, 9), ("target", "drafts"), (0.05, 5.0), strength=1)
def test_a_stalled_pass_does_not_switch_the_draft_off(
    monkeypatch: pytest.MonkeyPatch, stalled: str, place: int, stall_s: float
) -> None:
    clocks = {"target": Clock(0.02), "drafts": Clock(0.004)}
    clocks[stalled].stalls, clocks[stalled].stall_s = range(place, place + 2), stall_s
    monkeypatch.setattr(target, "clock", clocks["target"])
    monkeypatch.setattr(drafts, "clock", clocks["drafts"])
    pair = demo()
    inputs = pair.target_tokenizer("def fibonacci(n):", return_tensors="pt")
    assistant = uag.Assistant(pair.draft, pair.draft_tokenizer, pair.target_tokenizer, prompt_lookup=False)
    assistant.generate(pair.target, **inputs, max_new_tokens=64, do_sample=False)
    (sources,) = assistant.stats.sources
    assert "draft model" in sources[-32:]
    assert assistant.stats.not_drafting == ""


def test_a_draft_that_is_too_slow_is_named_with_its_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "clock", Clock(0.02))
    monkeypatch.setattr(drafts, "clock", Clock(0.5))
    pair = demo()
    inputs = pair.target_tokenizer("def fibonacci(n):", return_tensors="pt")
    assistant = uag.Assistant(pair.draft, pair.draft_tokenizer, pair.target_tokenizer, prompt_lookup=False)
    for _ in range(2):
        assistant.generate(pair.target, **inputs, max_new_tokens=64, do_sample=False)
    reason = assistant.stats.not_drafting
    assert reason.startswith("a candidate costs ")
    assert reason.endswith("% of the time; a plain pass costs 20.00 ms")
    assert str(assistant.stats).splitlines()[-1] == f"not drafting: {reason}"
    assert assistant.stats.to_dict()["not_drafting"] == reason


def test_a_long_unread_prompt_is_named() -> None:
    lookahead = Lookahead()
    lookahead.begin(1, "greedy", 2907, 8, 0.1)
    lookahead.plan()
    lookahead.costs.learn_target(0, 0.06)
    lookahead.learn_reading(91, 1.2)
    lookahead.plan()
    assert lookahead.reason().startswith("the prompt of 2,907 tokens was not read, which takes about ")
