"""examples/minimal.py: the same output as plain decoding and uag, and drafts nearly as good as uag's."""

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

import uag
from tests.support.trained import demo
from uag.bench import heldout_prompts

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "minimal.py"
MINIMAL = runpy.run_path(str(EXAMPLE))
NUM_TOKENS = 14
SAMPLED = {"do_sample": True, "temperature": 0.7, "top_k": 0}


@pytest.mark.parametrize("options", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_minimal_equals_plain_decoding_and_uag(options: dict[str, Any]) -> None:
    pair = demo()
    draft = MINIMAL["Draft"](pair.draft, pair.draft_tokenizer, pair.target_tokenizer)
    assistant = uag.Assistant(pair.draft, pair.draft_tokenizer, pair.target_tokenizer, prompt_lookup=False)
    num_passes = num_uag_passes = 0
    for seed, prompt in enumerate(heldout_prompts()[:1]):
        inputs = pair.target_tokenizer(prompt.content[:200], return_tensors="pt")
        prompt_ids = inputs["input_ids"][0].tolist()
        arguments = {**inputs, **options, "max_new_tokens": NUM_TOKENS}
        torch.manual_seed(seed)
        plain = pair.target.generate(**arguments)[0, len(prompt_ids) :].tolist()
        state = torch.get_rng_state()
        torch.manual_seed(seed)
        assisted = assistant.generate(pair.target, **arguments, num_assistant_tokens=MINIMAL["NUM_CANDIDATES"])
        torch.manual_seed(seed)
        output, num = MINIMAL["generate"](pair.target, draft, prompt_ids, NUM_TOKENS, options.get("temperature", 0.0))
        assert output == plain == assisted[0, len(prompt_ids) :].tolist()
        assert torch.equal(torch.get_rng_state(), state)
        num_passes += num
        num_uag_passes += assistant.stats.num_target_forwards - 1  # its pass over the prompt has no candidates
    assert num_passes < 2 * NUM_TOKENS * 0.75, "the draft helps"
    assert abs(num_passes - num_uag_passes) <= 0.2 * num_uag_passes, "its projection is as good as uag's"


def test_minimal_ends_at_eos_as_plain_decoding_does(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = demo()
    inputs = pair.target_tokenizer(MINIMAL["PROMPT"], return_tensors="pt")
    prompt_ids = inputs["input_ids"][0].tolist()
    free = pair.target.generate(**inputs, max_new_tokens=NUM_TOKENS)[0, len(prompt_ids) :].tolist()
    eos_id = free[NUM_TOKENS // 2]
    monkeypatch.setattr(pair.target.generation_config, "eos_token_id", eos_id)
    plain = pair.target.generate(**inputs, max_new_tokens=NUM_TOKENS)[0, len(prompt_ids) :].tolist()
    draft = MINIMAL["Draft"](pair.draft, pair.draft_tokenizer, pair.target_tokenizer)
    output, _ = MINIMAL["generate"](pair.target, draft, prompt_ids, NUM_TOKENS)
    assert output == plain
    assert output[-1] == eos_id
    assert len(output) < NUM_TOKENS
