"""Configurations whose tokens depend on others in unusual ways: equal to plain decoding, or plain with the reason."""

import random
from typing import Any

import pytest
import torch
import transformers

import uag
from tests.support.calls import GREEDY, NEW, PROMPTS, compare, left_padded
from tests.support.class_inputs import inputs_of
from tests.support.configurations import build, examine, sweep
from tests.support.grids import covering
from tests.support.kernels import needs_kernels
from tests.support.models import spread, tiny_model
from tests.support.tiny_classes import class_names, tiny_config
from tests.support.walk import SharedDrafter
from uag.hf import required_names

SWITCH, NLLB = "SwitchTransformersForConditionalGeneration", "NllbMoeForConditionalGeneration"
LAYERS = {"encoder_sparse_step": 1, "decoder_sparse_step": 1}
PLAIN: dict[str, tuple[dict[str, Any], str]] = {
    "share": ({"moe_eval_capacity_token_fraction": 0.5}, "drops tokens by the number of tokens in a pass"),
    "capacity": ({"moe_eval_capacity_token_fraction": 0.0, "expert_capacity": 2}, "drops tokens"),
    "random": ({"second_expert_policy": "random"}, "draws random numbers to choose experts"),
    "sampling": ({"second_expert_policy": "sampling"}, "draws random numbers to choose experts"),
}
SPARSE = [
    ("HYV4ForCausalLM", 4, 0),
    pytest.param("AXK2ForCausalLM", 2, 0, marks=pytest.mark.grid),
    pytest.param("GlmMoeDsaForCausalLM", 2, 0, marks=pytest.mark.grid),
    ("DeepseekV32ForCausalLM", 4, 1),
]


def built(class_name: str, seed: int = 0, **options: Any) -> Any:
    kind = getattr(transformers, class_name)
    torch.manual_seed(seed)
    return spread(kind(tiny_config(kind.config_class, **options)).float())


def check(model: Any, class_name: str, num_rows: int, **given: Any) -> Any:
    inputs = inputs_of("" if class_name.endswith("ForCausalLM") else class_names()[class_name], num_rows)
    usual: dict[str, Any] = {"eos_token_id": None, "pad_token_id": 0, "max_new_tokens": 24, "top_k": 0}
    return compare(model, inputs | usual | given, spoil=3)


@covering("capacity, do_sample, num_rows", (1, 2, 3), (False, True), (1, 3), strength=1)
def test_blocks_fit_into_the_capacity_of_experts(capacity: int, do_sample: bool, num_rows: int) -> None:
    model = built(SWITCH, expert_capacity=capacity, decoder_start_token_id=0)
    stats = check(model, SWITCH, num_rows, do_sample=do_sample)
    assert (stats.num_accepted_tokens > 0) == (capacity > 1)


@pytest.mark.skipif(not hasattr(transformers, "NllbMoeConfig"), reason="not in this release")
@covering("name, do_sample", PLAIN, (False, True), strength=1)
def test_a_router_that_depends_on_the_pass_falls_back_with_the_reason(name: str, do_sample: bool) -> None:
    options, reason = PLAIN[name]
    stats = check(built(NLLB, **LAYERS, **options), NLLB, 3, do_sample=do_sample)
    assert stats.num_candidate_tokens == 0
    assert "; ".join(stats.fallbacks).count(reason) == 1 or "draws random numbers at every pass" in stats.fallbacks[0]


@needs_kernels
@pytest.mark.parametrize("is_in_config", [False, True])
def test_router_logits_that_serve_a_training_loss_do_not_end_a_call(is_in_config: bool) -> None:
    model = built("OlmoeForCausalLM", output_router_logits=is_in_config)
    given: dict[str, Any] = {} if is_in_config else {"output_router_logits": True}
    stats = check(model, "OlmoeForCausalLM", 1, do_sample=False, cache_implementation="static", **given)
    assert stats.num_accepted_tokens > 0
    inputs = left_padded(PROMPTS) | GREEDY
    expected = model.generate(**inputs, output_router_logits=False)
    drafting = uag.Assistant(model, draft_weights="model", num_candidate_tokens=4)
    for assistant in (uag.Assistant(None), drafting):
        assert torch.equal(assistant.generate(model, **inputs, **given), expected)  # plain decoding fails with rows
    assert "stopped drafting" not in "; ".join(drafting.stats.fallbacks)
    assert drafting.stats.num_accepted_tokens


@pytest.mark.parametrize(("class_name", "num_keys", "seed"), SPARSE)
def test_sparse_attention_is_assisted_up_to_its_number_of_keys(class_name: str, num_keys: int, seed: int) -> None:
    if class_name not in class_names():
        pytest.skip("not in this release")
    model = built(class_name, seed, index_topk=num_keys)
    stats = check(model, class_name, 1, max_new_tokens=12)
    assert stats.num_candidate_tokens == 0
    assert f"selects its keys by rank beyond length {num_keys}" in stats.fallbacks[0]
    longer = check(built(class_name, seed, index_topk=24), class_name, 1, max_new_tokens=40)
    assert longer.num_accepted_tokens > 0
    assert "selects its keys by rank beyond length 24, so the rest of this call" in longer.fallbacks[0]


MASK_NONE = dict.fromkeys(("FalconForCausalLM", "GPTNeoXForCausalLM", "GPT2LMHeadModel"), "sliding_window")
MASK_NONE |= {"WhisperForConditionalGeneration": "sliding_window"}
MASK_NONE |= {"Qwen3OmniMoeThinkerForConditionalGeneration": "text_config.sliding_window"}  # its cache has windows


@pytest.mark.parametrize(("class_name", "field"), MASK_NONE.items())
def test_classes_that_mask_no_window_fall_back_with_the_reason(class_name: str, field: str) -> None:
    if class_name not in class_names():
        pytest.skip("not in this release")
    kind, reason = examine(class_name, build(class_name, {field: 4}), 3, False, 0.75)
    assert kind == "plain", reason
    assert "applies no window mask" in reason


@pytest.mark.parametrize("class_name", ["ExaoneMoeForCausalLM", "ModernBertDecoderForCausalLM", "MistralForCausalLM"])
def test_classes_that_mask_windows_are_assisted_beyond_them(class_name: str) -> None:
    assert check(built(class_name, sliding_window=4), class_name, 1).num_accepted_tokens > 0


def test_a_drawn_sample_of_all_configurations_is_equal_or_plain_with_a_reason() -> None:
    """Of each class: unchanged, and with two variants."""
    draws = random.Random(2)
    kinds = []
    for name in draws.sample(list(class_names()), 5):
        for place, found in enumerate(sweep(name, draws.randrange(1 << 30), 0)):
            assert found[2] != "DIFFERENT", found
            assert found[2] != "plain" or "plain decoding" in found[3], found
            kinds.append(found[2])
            if place == 4:
                break
    assert kinds.count("equal, both") >= 5  # the classes depend on the release


@pytest.mark.slow
@pytest.mark.parametrize("class_name", class_names())
def test_every_configuration_of_a_class_is_equal_or_plain_with_a_reason(class_name: str) -> None:
    found = list(sweep(class_name, 0, 10))
    assert [call for call in found if call[2] == "DIFFERENT"] == []


@pytest.mark.skipif(
    required_names.release() < (5, 23), reason="an older release draws weights with which no token is dropped"
)
def test_examine_sees_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uag.hf.blocks.most_tokens", lambda model: None)
    monkeypatch.setattr("uag.decoding.trial._refusal", lambda *of_trial: "")  # the trial would see it, too
    options = {"expert_capacity": 1, "decoder_start_token_id": 0}
    assert examine(SWITCH, build(SWITCH, options), 3, False, 0.75)[0] == "DIFFERENT"


@pytest.mark.parametrize(("num_rows", "most"), [(1, 3), (2, 1)])
def test_a_pass_copies_the_experts_of_few_tokens(num_rows: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("mixtral", 300, num_local_experts=8, num_experts_per_tok=2)
    model.set_experts_implementation("batched_mm")
    experts = sum(weight.nbytes for weight in model.model.layers[0].mlp.experts.parameters())
    monkeypatch.setattr("uag.hf.blocks._MOST_COPIED", experts)  # of four tokens
    given = left_padded(PROMPTS[:num_rows]) | GREEDY
    output = model.generate(**given)[:, -NEW:].tolist()
    assistant = uag.Assistant(None, drafter=SharedDrafter(output, 300, 1.0), num_candidate_tokens=8)
    stats = compare(model, given, assistant)
    assert 0 < stats.num_candidate_tokens <= most * num_rows * stats.num_rounds
