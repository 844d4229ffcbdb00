"""`examine`: the verdicts of real calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import DynamicCache, LogitsProcessorList, StaticCache

import uag
from tests.support.calls import GREEDY, PROMPTS, SAMPLED, Looks, OracleDrafter, Watches, left_padded, pair
from uag.decoding import loop
from uag.decoding.verdict import Verdict, examine

pytestmark = pytest.mark.filterwarnings("ignore:uag. ")


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes a call and returns its verdict."""
    verdicts: list[Verdict] = []

    def examined(call: Any) -> Verdict:
        verdicts.append(examine(call))
        return verdicts[-1]

    monkeypatch.setattr(loop, "examine", examined)

    def run(num_rows: int = 1, **options: Any) -> Verdict:
        target = pair()[0]
        drafter = OracleDrafter([[0] * 40] * num_rows, 10, spoil=0)
        assistant = uag.Assistant(None, drafter=drafter, num_candidate_tokens=2)
        inputs: dict[str, Any] = left_padded(PROMPTS[:num_rows])
        drafter.accept = lambda *_: None  # type: ignore[method-assign]
        drafter.propose = lambda ask: [[] for _ in ask.limits]  # type: ignore[method-assign]
        assistant.generate(target, **inputs | GREEDY | options)
        assert len(verdicts) == 1
        return verdicts.pop()

    return run


def test_an_ordinary_call_is_assisted_row_by_row(decided: Any) -> None:
    assert decided() == Verdict()
    assert decided(3) == Verdict()
    assert decided(3, **SAMPLED) == Verdict()


@pytest.mark.parametrize(
    ("num_rows", "options", "reason", "is_reported"),
    [
        (1, {"logits_processor": LogitsProcessorList([Looks()])}, "Looks may keep state", True),
        (1, {"stopping_criteria": [Watches()]}, "Watches may keep state", True),
        (3, {"stopping_criteria": [Watches()], "do_sample": True}, "Watches may keep state", True),
        (1, {"return_dict_in_generate": True}, "records every step", False),
        (3, {"return_dict_in_generate": True}, "records every step", False),
        (1, {"max_time": 600.0}, "a time limit", False),
        (3, {"max_time": 600.0}, "a time limit", False),
        (3, {"past_key_values": DynamicCache}, "the caller owns the cache", False),
        (3, {"attention_mask": [[1] * 6 + [0]] * 3}, "gaps after a row's first token", True),
    ],
)
def test_what_keeps_rows_together(
    num_rows: int, options: dict[str, Any], reason: str, is_reported: bool, decided: Any
) -> None:
    options = {name: value() if value is DynamicCache else value for name, value in options.items()}
    if "attention_mask" in options:
        options["attention_mask"] = torch.tensor(options["attention_mask"])
    found = decided(num_rows, **options)
    assert reason in found.lockstep
    assert (found.plain, found.is_reported, found.prompt_alone) == ("", is_reported, False)


def test_a_criterion_that_only_ends_rows_may_follow_behind(decided: Any) -> None:
    assert decided(3, stopping_criteria=[Watches()]) == Verdict()


def test_a_cache_matters_to_batches_alone(decided: Any) -> None:
    assert decided(1, past_key_values=DynamicCache()) == Verdict()


@pytest.mark.parametrize("name", ["output_attentions", "output_hidden_states"])
def test_calls_that_inspect_the_model_fall_back_to_plain_decoding(name: str, decided: Any) -> None:
    found = decided(return_dict_in_generate=True, **{name: True})
    assert found.plain.startswith("attentions and hidden states of blocks are not recorded")


def test_a_cache_that_cannot_be_rolled_back(decided: Any) -> None:
    class OwnCache(StaticCache):
        pass

    found = decided(past_key_values=OwnCache(config=pair()[0].config, max_cache_len=64))
    assert "OwnCache" in found.plain
    assert found.plain.endswith(", so this call falls back to plain decoding")


def test_a_prompt_that_runs_alone(decided: Any) -> None:
    target = pair()[0]
    embeddings = target.get_input_embeddings()(torch.tensor(PROMPTS[:1])).detach()
    assert decided(input_ids=None, attention_mask=None, inputs_embeds=embeddings) == Verdict(prompt_alone=True)
    assert decided(prefill_chunk_size=2).prompt_alone
