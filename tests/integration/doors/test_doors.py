"""Every way to call uag gives plain decoding's ids."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import uag
from tests.support.calls import (
    batch,
    pair,
)

NEW = 30
GREEDY: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False}


@pytest.mark.parametrize("num_candidate_tokens", [None, 4])
@pytest.mark.parametrize("num_rows", [1, 3])
def test_every_door_gives_plain_decodings_ids(num_rows: int, num_candidate_tokens: int | None) -> None:
    target, tokenizer, draft, draft_tokenizer = pair("gpt2")
    inputs = batch(tokenizer, num_rows)
    expected = target.generate(**inputs, **GREEDY).tolist()
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=num_candidate_tokens)
    assert assistant.generate(target, **inputs, **GREEDY).tolist() == expected
    if num_candidate_tokens:
        assert 0 < assistant.stats.num_accepted_tokens < assistant.stats.num_candidate_tokens
    assert target.generate(**inputs, **GREEDY, custom_generate=assistant).tolist() == expected
    mask = inputs["attention_mask"]
    assert assistant.generate(target, inputs["input_ids"], attention_mask=mask, **GREEDY).tolist() == expected


def test_return_sequences() -> None:
    target, tokenizer, draft, draft_tokenizer = pair("gpt2")
    inputs = batch(tokenizer)
    expected = target.generate(**inputs, **GREEDY).tolist()
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=4)
    assert assistant.generate(target, **inputs, **GREEDY, num_return_sequences=1).tolist() == expected
    with pytest.raises(ValueError, match="num_return_sequences"):
        assistant.generate(target, **inputs, **GREEDY, num_return_sequences=3)
    torch.manual_seed(3)
    sampled = target.generate(**inputs, max_new_tokens=12, do_sample=True, num_return_sequences=3).tolist()
    torch.manual_seed(3)
    found = assistant.generate(target, **inputs, max_new_tokens=12, do_sample=True, num_return_sequences=3)
    assert found.tolist() == sampled
