"""Unusual but valid calls, whose results equal plain `generate`'s."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import GenerationConfig

import uag
from tests.support.calls import EOS_IDS, PROMPTS, OracleDrafter, assert_drafted, compare, left_padded, pair, seeded
from tests.support.models import tiny_model
from uag.errors import UnsupportedError

MODES: dict[str, dict[str, Any]] = {"greedy": {"do_sample": False}, "sampled": {"do_sample": True, "top_k": 0}}
SHORT: dict[str, Any] = {"max_new_tokens": 20, "pad_token_id": 0}

pytestmark = pytest.mark.parametrize("mode", MODES)


def check(name: str, mode: str, **given: Any) -> uag.Stats:
    target, tokenizer, draft, draft_tokenizer = pair(name, eos=True)
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=4)
    return compare(target, SHORT | MODES[mode] | given, assistant)


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


def test_a_target_in_training_mode_with_a_generator_of_the_callers_own(mode: str) -> None:
    target, tokenizer, draft, draft_tokenizer = pair("gpt2", eos=True)
    generator = torch.Generator().manual_seed(3)
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, generator=generator)
    given = left_padded(PROMPTS) | MODES[mode] | SHORT
    target.train()
    try:
        expected = seeded(3, target.generate, **given)
        state = before = torch.get_rng_state()
        assert assistant.generate(target, **given).tolist() == expected.tolist()
    finally:
        target.eval()
    assert torch.equal(generator.get_state(), state)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_draft_in_training_mode_drafts_as_in_evaluation(name: str, num_rows: int, mode: str) -> None:
    draft = pair(name, eos=True)[2]
    in_evaluation = check(name, mode, **left_padded(PROMPTS[:num_rows]))
    draft.train()
    try:
        stats = check(name, mode, **left_padded(PROMPTS[:num_rows]))
        assert all(module.training for module in draft.modules())
    finally:
        draft.eval()
    assert stats.num_candidate_tokens == in_evaluation.num_candidate_tokens > 0
    assert stats.num_accepted_tokens == in_evaluation.num_accepted_tokens


# ---------------------------------------------------------------------- no cache


def test_no_cache_falls_back_to_plain_decoding_however_it_is_said(mode: str) -> None:
    stats = check("llama", mode, use_cache=None, **left_padded(PROMPTS))
    assert any("plain decoding" in reason for reason in stats.fallbacks)


@pytest.mark.parametrize("num_rows", [1, 3])
def test_a_target_that_reads_all_ids_in_every_pass(num_rows: int, mode: str) -> None:
    target = tiny_model("openai-gpt", 300, n_embd=32, n_layer=2, n_head=4, n_positions=64, eos_id=EOS_IDS[3])
    given = left_padded(PROMPTS[:num_rows]) | MODES[mode] | SHORT
    written = seeded(3, target.generate, **given)[:, given["input_ids"].shape[1] :].tolist()
    drafter = OracleDrafter([row + [0] * 20 for row in written], 300)
    assert_drafted(compare(target, given, uag.Assistant(None, drafter=drafter, num_candidate_tokens=4)))


def test_a_target_in_torch_compiles_wrapper(mode: str) -> None:
    target, tokenizer, draft, draft_tokenizer = pair(eos=True)
    wrapped: Any = torch.compile(target, backend="eager")
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=4)
    assert compare(wrapped, left_padded(PROMPTS) | MODES[mode] | SHORT, assistant).num_candidate_tokens > 0


# ---------------------------------------------------------------------- token healing


@pytest.mark.parametrize("place", ["keyword", "config"])
def test_token_healing_is_refused_before_any_work(place: str, mode: str) -> None:
    """transformers does not pass the tokenizer, which healing needs, to a callable."""
    target, tokenizer, draft, draft_tokenizer = pair(eos=True)
    given = MODES[mode] | {"token_healing": True}
    options: dict[str, Any] = given if place == "keyword" else {"generation_config": GenerationConfig(**given)}
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer)
    with pytest.raises(UnsupportedError, match=r"token_healing.*model.heal_tokens"):
        assistant.generate(target, **left_padded(PROMPTS[:1]), **options)


def test_token_healing_by_hand(mode: str) -> None:
    """The error message's advice works."""
    target, tokenizer, _, _ = pair(eos=True)
    inputs = healable(tokenizer)
    healed = target.heal_tokens(inputs["input_ids"], tokenizer)
    given = MODES[mode] | SHORT
    expected = seeded(3, target.generate, **inputs, **given, token_healing=True, tokenizer=tokenizer)
    stats = check("llama", mode, input_ids=healed, attention_mask=inputs["attention_mask"])
    output = seeded(3, target.generate, input_ids=healed, attention_mask=inputs["attention_mask"], **given)
    assert output.tolist() == expected.tolist()
    assert stats.num_candidate_tokens > 0


def healable(tokenizer: Any) -> Any:
    """Return a prompt whose last token is a prefix of longer tokens."""
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    inputs = tokenizer("The quick brown fox jumps ov", return_tensors="pt", add_special_tokens=False)
    return {name: inputs[name] for name in ("input_ids", "attention_mask")}
