"""Compares sampled calls: ids and the generator's final state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.support.calls import OracleDrafter, compare, left_padded
from uag.assistant import Assistant
from uag.stats import Stats

NUM_TOKENS = 24
SAMPLED: dict[str, Any] = {"do_sample": True, "top_k": 0, "max_new_tokens": NUM_TOKENS, "pad_token_id": 0}


def sample(generate: Callable[..., Any], seed: int, **options: Any) -> tuple[Any, torch.Tensor]:
    """Run one call, and return its output and the default generator's state after it."""
    torch.manual_seed(seed)
    return generate(**SAMPLED | options), torch.get_rng_state()


def oracle(target: Any, ids: torch.Tensor, length: int, spoil: int = 4, **options: Any) -> Assistant:
    """Return an assistant that drafts plain decoding's output with some wrong ids."""
    outputs = [row + [0] * NUM_TOKENS for row in ids[:, length:].tolist()]
    drafter = OracleDrafter(outputs, target.config.vocab_size, spoil)
    return Assistant(None, drafter=drafter, **{"num_candidate_tokens": 6} | options)


def assert_same(target: Any, prompts: list[list[int]], seed: int, spoil: int = 4, **options: Any) -> Stats:
    """Compare a call assisted by an oracle with plain decoding."""
    return compare(target, left_padded(prompts) | SAMPLED | options, seed=seed, spoil=spoil)


def with_target(assistant: Assistant, target: Any) -> Callable[..., Any]:
    """Return an assistant's `generate` with the signature of a model's."""
    generate = assistant.generate
    return lambda **options: generate(target, **options)
