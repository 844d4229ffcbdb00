"""On a CUDA device: the same ids and the same final generator state as plain decoding (run with `pytest -m gpu`)."""

from __future__ import annotations

import copy
from functools import cache, partial
from typing import Any

import pytest
import torch

import uag
from tests.support.calls import left_padded
from tests.support.models import tiny_target, twin
from uag.sampling import multinomial_is_argmax

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@cache
def pair() -> tuple[Any, Any, Any, Any]:
    target, tokenizer = tiny_target("llama")
    draft, draft_tokenizer = twin(target, tokenizer)
    return copy.deepcopy(target).cuda(), tokenizer, draft.cuda(), draft_tokenizer


def test_multinomial_is_argmax_of_the_shared_noise() -> None:
    assert multinomial_is_argmax(torch.device("cuda"))


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("compile_draft", [False, True], ids=["eager", "CUDA graphs"])
@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("do_sample", [False, True], ids=["greedy", "sampled"])
def test_ids_and_generator_are_those_of_plain_decoding(
    do_sample: bool, num_rows: int, compile_draft: bool, cache: str | None
) -> None:
    target, tokenizer, draft, draft_tokenizer = pair()
    assistant = uag.Assistant(
        draft, draft_tokenizer, tokenizer, num_candidate_tokens=4, compile_draft=compile_draft
    )  # fmt: skip
    texts = ["The quick brown fox", "One", "two three"][:num_rows]
    rows = left_padded([tokenizer(text)["input_ids"] for text in texts])
    options: dict[str, Any] = {name: value.cuda() for name, value in rows.items()} | {
        "max_new_tokens": 40,
        "do_sample": do_sample,
        "cache_implementation": cache,
    }
    results = []
    for generate in (target.generate, partial(assistant.generate, target), partial(assistant.generate, target)):
        torch.manual_seed(3)
        results.append((generate(**options).tolist(), torch.cuda.get_rng_state().tolist()))
    assert results[0] == results[1] == results[2]
    assert assistant.stats.num_accepted_tokens > 0
    assert not assistant.stats.fallbacks
