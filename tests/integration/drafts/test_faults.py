"""When real calls ask the draft, on clocks that tick once per reading: after stalls, if it is slow or useless."""

import pytest
import torch

import uag
from tests.support.calls import GREEDY, NEW, batch, compare, pair
from tests.support.grids import covering
from tests.support.models import tiny_model
from tests.support.trained import demo
from uag.decoding import drafts, target
from uag.drafting.models import base
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


def replace_clocks(monkeypatch: pytest.MonkeyPatch, target_s: float, draft_s: float) -> dict[str, Clock]:
    """Let each target pass take `target_s` seconds and each round's drafting `draft_s`, half of it for a prompt."""
    clocks = {"target": Clock(target_s), "drafts": Clock(draft_s), "base": Clock(draft_s / 2)}
    for module in (target, drafts, base):
        monkeypatch.setattr(module, "clock", clocks[module.__name__.rpartition(".")[2]])
    return clocks


def demo_calls(num: int) -> uag.Stats:
    models = demo()
    inputs = models.target_tokenizer("def fibonacci(n):", return_tensors="pt")
    assistant = uag.Assistant(models.draft, models.draft_tokenizer, models.target_tokenizer, prompt_lookup=False)
    for _ in range(num):
        assistant.generate(models.target, **inputs, max_new_tokens=40, do_sample=False)
    return assistant.stats


@covering("place, stalled, stall_s", (1, 5, 9), ("target", "drafts"), (0.05, 5.0), strength=1)
def test_stalls_switch_nothing_off(monkeypatch: pytest.MonkeyPatch, stalled: str, place: int, stall_s: float) -> None:
    clock = replace_clocks(monkeypatch, 0.02, 0.004)[stalled]
    clock.stalls, clock.stall_s = range(place, place + 2), stall_s
    stats = demo_calls(1)
    (sources,) = stats.sources
    assert "draft model" in sources[-16:]
    assert stats.not_drafting == ""


def test_a_draft_that_is_too_slow_is_named_with_its_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_clocks(monkeypatch, 0.02, 0.5)
    stats = demo_calls(2)
    reason = stats.not_drafting
    assert reason.startswith("a candidate costs ")
    assert reason.endswith("% of the time; a plain pass costs 20.00 ms")
    assert str(stats).splitlines()[-1] == f"not drafting: {reason}"
    assert stats.to_dict()["not_drafting"] == reason


def test_a_draft_that_overflows_is_soon_asked_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_clocks(monkeypatch, 0.02, 0.01)
    model, tokenizer, _, _ = pair()
    draft = tiny_model("llama", model.config.vocab_size, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                       num_attention_heads=2, max_position_embeddings=256)  # fmt: skip
    with torch.no_grad():
        draft.lm_head.weight.fill_(torch.nan)
    assistant = uag.Assistant(draft, tokenizer, tokenizer, prompt_lookup=False)
    num_passes = []
    for _ in range(12):
        stats = compare(model, batch(tokenizer) | GREEDY, assistant)
        assert stats.num_candidate_tokens == 0
        num_passes.append(stats.num_draft_forwards)
    assert num_passes[0] > 0
    assert sum(num_passes) < 2 * NEW, num_passes  # in twelve calls
    assert sum(num_passes[6:]) < NEW // 2, num_passes


def test_a_long_unread_prompt_is_named() -> None:
    lookahead = Lookahead()
    lookahead.begin(1, "greedy", 2907, 8, 0.1)
    lookahead.plan()
    lookahead.costs.learn_target(0, 0.06)
    lookahead.costs.reading.add(91, 1.2)
    lookahead.plan()
    reason = lookahead.reason()
    assert reason.startswith("the draft has not read the prompt of 2,907 tokens: this takes about ")
    assert reason.endswith(" s, longer than drafting was expected to save")
