"""Alternative continuations in a pass save passes and do not change proposals."""

from __future__ import annotations

import random

import pytest
import torch

import uag
from tests.support.models import tiny_draft, tiny_target


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_same_candidates_with_fewer_passes(name: str, temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    target, tokenizer = tiny_target(name)
    draft, draft_tokenizer = tiny_draft(name)
    rng = random.Random(3)
    ids = torch.tensor([[rng.randrange(20, 200) for _ in range(12)] for _ in range(2)])
    options = {"max_new_tokens": 24, "do_sample": temperature > 0, "attention_mask": torch.ones_like(ids)}
    torch.manual_seed(5)
    expected = target.generate(ids, **options).tolist()
    found = []
    for most in (0, 3):
        monkeypatch.setattr("uag.drafting.models.torch_draft._MOST_SIDE", most)
        assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=4, prompt_lookup=False)
        torch.manual_seed(5)
        assert assistant.generate(target, ids, **options).tolist() == expected
        stats = assistant.stats
        found.append((stats.candidates_by_position, stats.accepted_by_position, stats.num_draft_forwards))
    assert found[0][:2] == found[1][:2]
    assert found[1][2] < found[0][2]
