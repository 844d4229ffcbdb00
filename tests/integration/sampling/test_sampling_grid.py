"""The whole grid: every trained pair, 50 prompts, 4 seeds, 4 temperatures, 48 new tokens.

    pytest -m slow tests/integration/sampling/test_sampling_grid.py -s

This takes about fifty minutes on one core. To run a part of it, set UAG_GRID_PROMPTS=5 and UAG_GRID_SEEDS=1.
Differences that are due to the target's own rounding are printed.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch

from tests.support.rounding import Differences
from tests.support.trained import prompt, trained
from uag.assistant import Assistant
from uag.bench.equality import sampling_noise

STORIES = ("stories260K", "stories-tok105", "stories-tok361")
DRAFTS = {target: [draft for draft in STORIES if draft != target] for target in STORIES}
DRAFTS["demo-target"] = ["demo-draft"]
PAIRS = [(target, draft) for target, drafts in DRAFTS.items() for draft in drafts]
NUM_PROMPTS = int(os.environ.get("UAG_GRID_PROMPTS", "50"))
NUM_SEEDS = int(os.environ.get("UAG_GRID_SEEDS", "4"))
NUM_TOKENS = 48
CPU = torch.device("cpu")
BLOCKS = (6, 3, 1)
"""Candidates per round, used in turn. Most of the time is spent drafting."""


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.5])
@pytest.mark.parametrize("target", DRAFTS)
def test_the_grid(target: str, temperature: float) -> None:
    compare(target, DRAFTS[target], temperature, NUM_PROMPTS, NUM_SEEDS)


@pytest.mark.parametrize("pair", PAIRS, ids=" <- ".join)
def test_a_sample_of_the_grid(pair: tuple[str, str]) -> None:
    compare(pair[0], [pair[1]], 1.0, 2, 1)


def step_noise(seed: int, temperature: float, vocab_size: int, step: int) -> torch.Tensor:
    """Return the noise that sampling adds to the logits of an output step."""
    return temperature * sampling_noise(seed, step, 1, 0, vocab_size, CPU)


def compare(name: str, drafts: Sequence[str], temperature: float, num_prompts: int, num_seeds: int) -> None:
    target, tokenizer = trained(name)
    arms = {
        draft: [Assistant(*trained(draft), tokenizer, num_candidate_tokens=size) for size in BLOCKS] for draft in drafts
    }
    counts: Counter[tuple[str, str]] = Counter()
    differences = Differences()
    for number, seed in itertools.product(range(num_prompts), range(num_seeds)):
        ids = torch.tensor([prompt(name, 6 + number % 11, 5 * number)])
        options: dict[str, Any] = {
            "input_ids": ids, "attention_mask": torch.ones_like(ids), "do_sample": True, "top_k": 0,
            "temperature": temperature, "max_new_tokens": NUM_TOKENS,
        }  # fmt: skip
        torch.manual_seed(seed)
        expected = target.generate(**options)
        state = torch.get_rng_state()
        for draft, assistants in arms.items():
            assistant = assistants[(number + seed) % len(BLOCKS)]
            torch.manual_seed(seed)
            output = assistant.generate(target, **options)
            counts[draft, "accepted"] += assistant.stats.num_accepted_tokens
            counts[draft, "candidates"] += assistant.stats.num_candidate_tokens
            if output.tolist() == expected.tolist():
                assert torch.equal(torch.get_rng_state(), state)
            num_prompt = ids.shape[1]
            differences.check(
                target, ids[0].tolist(), expected[0, num_prompt:].tolist(), output[0, num_prompt:].tolist(),
                noise_at=partial(step_noise, seed, temperature, target.config.vocab_size),
            )  # fmt: skip
    differences.report(f"{name} at {temperature}")
    assert len(differences.found) <= len(drafts) + differences.num_ids // 100_000
    for draft in drafts:
        accepted, candidates = counts[draft, "accepted"], counts[draft, "candidates"]
        print(f"{name} <- {draft} at {temperature}: acceptance {accepted / candidates:.3f}")
        assert 0 < accepted <= candidates
        assert accepted < candidates or num_prompts < 10
