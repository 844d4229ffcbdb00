"""The whole grid: every trained pair, 50 prompts, 4 seeds, 4 temperatures, 48 new tokens.

    pytest -m slow tests/integration/test_sampling_grid.py -s

About half an hour per stories pair on one core, an hour for the demo pair. A part of it:

    UAG_GRID_PROMPTS=5 UAG_GRID_SEEDS=1 pytest -m slow tests/integration/test_sampling_grid.py -s

A difference counts as the target's own rounding only where that position, computed alone and inside its block, gives
both ids, and their scores differ by less than 1e-4. Such differences are printed.
"""

from __future__ import annotations

import itertools
import os
from typing import Any

import pytest
import torch

from tests.trained import prompt, trained
from uag.assistant import Assistant
from uag.noise import NoiseTape

STORIES = ("stories260K", "stories-tok105", "stories-tok361")
PAIRS = (*itertools.permutations(STORIES, 2), ("demo-target", "demo-draft"))
NUM_PROMPTS = int(os.environ.get("UAG_GRID_PROMPTS", "50"))
NUM_SEEDS = int(os.environ.get("UAG_GRID_SEEDS", "4"))
NUM_TOKENS = 48
BLOCK = 6


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.5])
@pytest.mark.parametrize("pair", PAIRS, ids=" <- ".join)
def test_the_grid(pair: tuple[str, str], temperature: float) -> None:
    compare(pair, temperature, NUM_PROMPTS, NUM_SEEDS)


@pytest.mark.parametrize("pair", PAIRS, ids=" <- ".join)
def test_a_sample_of_the_grid(pair: tuple[str, str]) -> None:
    compare(pair, 1.0, 2, 1)


def compare(pair: tuple[str, str], temperature: float, num_prompts: int, num_seeds: int) -> None:
    target, tokenizer = trained(pair[0])
    assistant = Assistant(*trained(pair[1]), tokenizer, num_candidate_tokens=BLOCK)
    num_positions = num_own = accepted = candidates = 0
    for number, seed in itertools.product(range(num_prompts), range(num_seeds)):
        ids = torch.tensor([prompt(pair[0], 6 + number % 11, 5 * number)])
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        options: dict[str, Any] = {
            "do_sample": True,
            "top_k": 0,
            "temperature": temperature,
            "max_new_tokens": NUM_TOKENS,
        }
        torch.manual_seed(seed)
        expected = target.generate(**inputs, **options)
        state = torch.get_rng_state()
        torch.manual_seed(seed)
        output = assistant.generate(target, **inputs, **options)
        num_positions += expected.shape[1] - ids.shape[1]
        accepted += assistant.stats.num_accepted_tokens
        candidates += assistant.stats.num_candidate_tokens
        if output.tolist() == expected.tolist():
            assert torch.equal(torch.get_rng_state(), state)
            continue
        num_own += 1
        assert _is_rounding(target, ids, expected[0], output[0], seed, temperature), (seed, ids.tolist())
    print(
        f"{' <- '.join(pair)} at {temperature}: {num_positions} positions, "
        f"{num_own} flipped by the target's own rounding, "
        f"acceptance {accepted / candidates:.3f}"
    )
    assert 0 < accepted <= candidates
    assert accepted < candidates or num_prompts < 10
    assert num_own <= 1 + num_positions // 100_000


def _is_rounding(
    target: Any, given: torch.Tensor, expected: torch.Tensor, output: torch.Tensor, seed: int, temperature: float
) -> bool:
    """Replay the first position that differs, alone and inside a block."""
    size = min(expected.numel(), output.numel())
    place = int((expected[:size] != output[:size]).nonzero()[0])
    generator = torch.Generator().manual_seed(seed)
    step = place - given.shape[1]
    noise = NoiseTape(1, target.config.vocab_size, torch.device("cpu"), generator).at(step)[0]
    found = set()
    margins = []
    for width in range(1, BLOCK + 2):
        with torch.inference_mode():
            before = target(expected[None, : place - width], use_cache=True)
            block = target(expected[None, place - width : place], past_key_values=before.past_key_values)
        scores = torch.log_softmax(block.logits[0, -1] / temperature, -1) - noise.log()
        found.add(int(scores.argmax()))
        margins.append(float(scores.topk(2).values.diff().abs()))
    return {int(expected[place]), int(output[place])} <= found and min(margins) < 1e-4
