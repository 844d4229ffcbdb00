"""Unusual but valid calls, whose results equal plain `generate`'s."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import uag
from tests.support.calls import MODES, PROMPTS, ROWS, assistant_of, compare, left_padded, pair

pytestmark = MODES


def check(name: str, options: dict[str, Any], **given: Any) -> uag.Stats:
    return compare(pair(name, eos=True)[0], options | given, assistant_of(name, eos=True))


GAPS = {
    "right and left": [". 5 9 14 3 27 .", "8 6 . . . . .", "12 40 33 18 21 9 4"],
    "holes": ["5 9 . 3 27", "8 . . . 5", ". 12 40 33 18"],
}
"""Rows of ids, with dots where the mask is zero."""


@ROWS
@pytest.mark.parametrize("name", ["llama", "mistral"])
@pytest.mark.parametrize("gaps", GAPS)
def test_masks_with_gaps(gaps: str, name: str, num_rows: int, options: dict[str, Any]) -> None:
    rows = [row.split() for row in GAPS[gaps][:num_rows]]
    ids = torch.tensor([[0 if word == "." else int(word) for word in row] for row in rows])
    mask = torch.tensor([[int(word != ".") for word in row] for row in rows])
    stats = check(name, options, input_ids=ids, attention_mask=mask)
    assert stats.num_candidate_tokens > 0
    if num_rows > 1:
        assert any("gaps" in reason for reason in stats.fallbacks)


@ROWS
@pytest.mark.parametrize("kind", [torch.int32, torch.bool, torch.float32])
def test_ids_and_masks_of_other_types(kind: torch.dtype, num_rows: int, options: dict[str, Any]) -> None:
    inputs = left_padded(PROMPTS[:num_rows])
    ids = inputs["input_ids"].to(kind if kind == torch.int32 else torch.long)
    stats = check("llama", options, input_ids=ids, attention_mask=inputs["attention_mask"].to(kind))
    assert not stats.fallbacks


@ROWS
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_draft_in_training_mode_drafts_as_in_evaluation(name: str, num_rows: int, options: dict[str, Any]) -> None:
    draft = pair(name, eos=True)[2]
    in_evaluation = check(name, options, **left_padded(PROMPTS[:num_rows]))
    draft.train()
    try:
        stats = check(name, options, **left_padded(PROMPTS[:num_rows]))
        assert all(module.training for module in draft.modules())
    finally:
        draft.eval()
    assert stats.num_candidate_tokens == in_evaluation.num_candidate_tokens > 0
    assert stats.num_accepted_tokens == in_evaluation.num_accepted_tokens


def test_no_cache_falls_back_to_plain_decoding_however_it_is_said(options: dict[str, Any]) -> None:
    stats = check("llama", options, use_cache=None, **left_padded(PROMPTS))
    assert any("plain decoding" in reason for reason in stats.fallbacks)
