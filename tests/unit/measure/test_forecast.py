"""The forecast: uag's rounds with given costs of target passes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.models import tiny_target, twin
from uag.drafting import Pairing
from uag.measure import BatchWriter, Replay, TargetCosts, Text, forecast

NUM_NEW = 40
PASS_S = 1.0
"""Long enough that the draft's real time is negligible."""


@pytest.fixture(scope="module")
def world() -> tuple[Any, Any, list[Text]]:
    target, tokenizer = tiny_target("llama")
    prompts = ("one two three four", "seven eight", "three, four. Five")
    due = [Text(str(i), tuple(tokenizer(prompt)["input_ids"])) for i, prompt in enumerate(prompts)]
    return target, tokenizer, BatchWriter(target, NUM_NEW).write(due)


def costs(texts: list[Text], pass_s: dict[int, float] | None = None, **options: Any) -> TargetCosts:
    plain_s = {text.text_id: PASS_S * len(text.output_ids) for text in texts}
    prefill_s = dict.fromkeys(plain_s, PASS_S)
    values = {"overhead_s": 0.0, "num_bytes": 10**9} | options
    return TargetCosts(plain_s, prefill_s, pass_s or {1: PASS_S, 33: PASS_S}, **values)


def replay(target: Any, tokenizer: Any, draft: Any, draft_tokenizer: Any, *, looks_up: bool = False) -> Replay:
    drafter = Pairing(draft, tokenizer, draft_tokenizer, prompt_lookup=looks_up).for_all
    assert drafter is not None
    return Replay(drafter, target.lm_head.weight.shape[0])


def test_with_free_drafting_the_speed_is_the_tokens_of_a_pass(world: Any) -> None:
    target, tokenizer, texts = world
    prediction = forecast(replay(target, tokenizer, target, tokenizer), texts, costs(texts))
    assert prediction.speed_up.value == pytest.approx(prediction.tokens_per_pass, rel=0.15)
    assert prediction.tokens_per_pass > 4  # the draft is the target
    assert 0.9 < prediction.passes_per_candidate < 1.5
    assert 0 < prediction.draft_share < 0.3
    assert 0 < prediction.forward_share < 1


def test_a_better_draft_promises_more(world: Any) -> None:
    target, tokenizer, texts = world
    speeds = [
        forecast(replay(target, tokenizer, *twin(target, tokenizer, noise=noise)), texts, costs(texts)).speed_up.value
        for noise in (0.003, 0.03, 1.0)
    ]
    assert speeds[0] > speeds[1] > speeds[2]
    assert speeds[2] < 1.1


def test_wide_passes_that_cost_much_leave_nothing_to_gain(world: Any) -> None:
    target, tokenizer, texts = world
    dear = {1: PASS_S, 2: 10 * PASS_S, 33: 100 * PASS_S}
    prediction = forecast(replay(target, tokenizer, *twin(target, tokenizer, noise=0.03)), texts, costs(texts, dear))
    assert prediction.num_candidates < 1.0
    assert prediction.speed_up.value < 1.0


def test_prompt_lookup_is_part_of_it(world: Any) -> None:
    target, tokenizer, _ = world
    # Repetitive text, which a draft with random weights would not propose.
    text = Text("0", tuple(range(5, 25)) * 2, output_ids=tuple(range(5, 25)) * 2)
    draft = twin(target, tokenizer, noise=1.0)
    without, along = (
        forecast(replay(target, tokenizer, *draft, looks_up=looks_up), [text], costs([text]))
        for looks_up in (False, True)
    )
    assert along.tokens_per_pass > 2 * without.tokens_per_pass


def test_costs_lie_on_lines_and_never_fall_with_the_width() -> None:
    target_costs = TargetCosts({}, {}, {1: 3.0, 2: 2.0, 4: 4.0}, 0.0, 1)
    assert [target_costs.at(width) for width in (1, 2, 3, 4, 9)] == [2.0, 2.0, 3.0, 4.0, 4.0]
