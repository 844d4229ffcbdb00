"""Unusual but valid calls, whose results equal plain `generate`'s."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import uag
from tests.support.calls import EOS_IDS, PROMPTS, OracleDrafter, assert_drafted, compare, left_padded, pair, seeded
from tests.support.models import tiny_model

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
    stats = check(name, mode, input_ids=ids, attention_mask=mask, eos_token_id=None)
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
