"""Unusual but valid calls: what plain `generate` makes of them, uag makes of them too."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

import uag
from tests.support.calls import EOS_IDS, PROMPTS, OracleDrafter, left_padded, pair
from tests.support.models import tiny_model
from uag.errors import UnsupportedError

MODES: dict[str, dict[str, Any]] = {"greedy": {"do_sample": False}, "sampled": {"do_sample": True, "top_k": 0}}

pytestmark = pytest.mark.parametrize("mode", MODES)


def run(generate: Callable[..., Any], **given: Any) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    return generate(max_new_tokens=20, pad_token_id=0, **given), torch.get_rng_state()


def check(name: str, mode: str, **given: Any) -> uag.Stats:
    """Compare a call with plain decoding: ids, their type, and the generator's final state."""
    target, tokenizer, draft, draft_tokenizer = pair(name, eos=True)
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=4)
    given = {**MODES[mode], **given}
    expected, state = run(target.generate, **given)
    output, state_after = run(lambda **options: assistant.generate(target, **options), **given)
    assert output.tolist() == expected.tolist()
    assert output.dtype == expected.dtype
    assert torch.equal(state, state_after)
    return assistant.stats


# ---------------------------------------------------------------------- ids and masks

GAPS = {
    "right and left": [". 5 9 14 3 27 .", "8 6 . . . . .", "12 40 33 18 21 9 4"],
    "holes": ["5 9 . 3 27", "8 . . . 5", ". 12 40 33 18"],
}
"""Rows of ids, with dots where the mask is zero."""


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("name", ["llama", "mistral"])
@pytest.mark.parametrize("gaps", GAPS)
def test_masks_with_gaps(gaps: str, name: str, num_rows: int, mode: str) -> None:
    rows = [row.split() for row in GAPS[gaps][:num_rows]]
    ids = torch.tensor([[0 if word == "." else int(word) for word in row] for row in rows])
    mask = torch.tensor([[int(word != ".") for word in row] for row in rows])
    stats = check(name, mode, input_ids=ids, attention_mask=mask)
    assert stats.num_candidate_tokens > 0
    if num_rows > 1:
        assert any("gaps" in reason for reason in stats.fallbacks)


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("kind", [torch.int32, torch.bool, torch.float32])
def test_ids_and_masks_of_other_types(kind: torch.dtype, num_rows: int, mode: str) -> None:
    inputs = left_padded(PROMPTS[:num_rows])
    ids = inputs["input_ids"].to(kind if kind == torch.int32 else torch.long)
    stats = check("llama", mode, input_ids=ids, attention_mask=inputs["attention_mask"].to(kind))
    assert not stats.fallbacks


# ---------------------------------------------------------------------- models in training mode


@pytest.fixture
def training(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any]]:
    """A pair of which some models are in training mode, with dropout or gradient checkpointing."""
    name, which = request.param
    models = [pair(name, eos=True)[place] for place in which]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 5.23 has another name for gradient checkpointing
        for model in models:
            model.train()
            if name == "llama":
                model.gradient_checkpointing_enable()
        yield request.param
        for model in models:
            if name == "llama":
                model.gradient_checkpointing_disable()
            model.eval()


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("training", [("gpt2", (0,)), ("llama", (0,)), ("gpt2", (0, 2))], ids=str, indirect=True)
def test_a_target_in_training_mode_decodes_plainly(training: tuple[str, Any], num_rows: int, mode: str) -> None:
    stats = check(training[0], mode, **left_padded(PROMPTS[:num_rows]))
    assert any("training mode" in reason for reason in stats.fallbacks)
    assert stats.num_candidate_tokens == 0
    assert stats.num_output_tokens > 0


@pytest.mark.parametrize("training", [("gpt2", (0,))], ids=str, indirect=True)
def test_a_target_in_training_mode_with_a_generator_of_the_callers_own(training: tuple[str, Any], mode: str) -> None:
    target, tokenizer, draft, draft_tokenizer = pair(training[0], eos=True)
    generator = torch.Generator().manual_seed(3)
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, generator=generator)
    given = {**left_padded(PROMPTS), **MODES[mode], "max_new_tokens": 20, "pad_token_id": 0}
    expected, state = run(target.generate, **left_padded(PROMPTS), **MODES[mode])
    before = torch.get_rng_state()
    assert assistant.generate(target, **given).tolist() == expected.tolist()
    assert torch.equal(generator.get_state(), state)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("training", [("gpt2", (2,)), ("llama", (2,))], ids=str, indirect=True)
def test_a_draft_in_training_mode_drafts_as_in_evaluation(training: tuple[str, Any], num_rows: int, mode: str) -> None:
    stats = check(training[0], mode, **left_padded(PROMPTS[:num_rows]))
    draft = pair(training[0], eos=True)[2]
    assert all(module.training for module in draft.modules())
    draft.eval()
    told = check(training[0], mode, **left_padded(PROMPTS[:num_rows]))
    assert stats.num_candidate_tokens == told.num_candidate_tokens > 0
    assert stats.num_accepted_tokens == told.num_accepted_tokens


# ---------------------------------------------------------------------- no cache


def test_no_cache_is_decoded_plainly_however_it_is_said(mode: str) -> None:
    target, tokenizer, draft, draft_tokenizer = pair(eos=True)
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer)
    options = {"use_cache": None, **left_padded(PROMPTS), **MODES[mode]}
    expected, state = run(target.generate, **options)
    found, found_state = run(lambda **given: assistant.generate(target, **given), **options)
    assert found.equal(expected)
    assert found_state.equal(state)
    assert any("plain decoding" in reason for reason in assistant.stats.fallbacks)


@pytest.mark.parametrize("num_rows", [1, 3])
def test_a_target_that_reads_all_ids_in_every_pass(num_rows: int, mode: str) -> None:
    target = tiny_model("openai-gpt", 300, n_embd=32, n_layer=2, n_head=4, n_positions=64, eos_id=EOS_IDS[3])
    inputs = left_padded(PROMPTS[:num_rows])
    expected, state = run(target.generate, **inputs, **MODES[mode])
    written = expected[:, inputs["input_ids"].shape[1] :].tolist()
    drafter = OracleDrafter([row + [0] * 20 for row in written], 300)
    assistant = uag.Assistant(None, drafter=drafter, num_candidate_tokens=4)
    output, state_after = run(lambda **given: assistant.generate(target, **given), **inputs, **MODES[mode])
    assert output.tolist() == expected.tolist()
    assert torch.equal(state, state_after)
    assert 0 < assistant.stats.num_accepted_tokens < assistant.stats.num_candidate_tokens


def test_a_target_in_torch_compiles_wrapper(mode: str) -> None:
    target, tokenizer, draft, draft_tokenizer = pair(eos=True)
    wrapped: Any = torch.compile(target, backend="eager")
    inputs = left_padded(PROMPTS)
    expected, _ = run(wrapped.generate, **inputs, **MODES[mode])
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=4)
    output, _ = run(lambda **given: assistant.generate(wrapped, **given), **inputs, **MODES[mode])
    assert output.tolist() == expected.tolist()
    assert assistant.stats.num_candidate_tokens > 0


# ---------------------------------------------------------------------- token healing


@pytest.mark.parametrize("place", ["keyword", "config"])
def test_token_healing_is_refused_before_any_work(place: str, mode: str) -> None:
    """Transformers takes the tokenizer, which healing needs, away from every callable."""
    target, tokenizer, draft, draft_tokenizer = pair(eos=True)
    given = MODES[mode] | {"token_healing": True}
    options: dict[str, Any] = given if place == "keyword" else {"generation_config": GenerationConfig(**given)}
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer)
    with pytest.raises(UnsupportedError, match=r"token_healing.*model.heal_tokens"):
        run(lambda **given: assistant.generate(target, **given), **left_padded(PROMPTS[:1]), **options)


def test_token_healing_by_hand(mode: str) -> None:
    """The refusal's advice."""
    target, tokenizer, _, _ = pair(eos=True)
    inputs = healable(tokenizer)
    healed = target.heal_tokens(inputs["input_ids"], tokenizer)
    expected, _ = run(target.generate, **inputs, **MODES[mode], token_healing=True, tokenizer=tokenizer)
    stats = check("llama", mode, input_ids=healed, attention_mask=inputs["attention_mask"])
    output, _ = run(target.generate, input_ids=healed, attention_mask=inputs["attention_mask"], **MODES[mode])
    assert output.tolist() == expected.tolist()
    assert stats.num_candidate_tokens > 0


def healable(tokenizer: Any) -> Any:
    """A prompt whose last token has longer ones that begin with it."""
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    inputs = tokenizer("The quick brown fox jumps ov", return_tensors="pt", add_special_tokens=False)
    return {name: inputs[name] for name in ("input_ids", "attention_mask")}
