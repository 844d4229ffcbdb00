"""Greedy ids equal plain `generate`, id for id, whatever the target's architecture."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

import uag
from tests.tiny_models import (
    ARCHITECTURES,
    STATEFUL,
    OracleDrafter,
    count_calls,
    left_padded,
    tiny_draft,
    tiny_model,
    tiny_target,
)
from uag.errors import UnsupportedError

TEXTS = (
    "The quick brown fox jumps over the lazy dog, and",
    "def add(first,",
    "Ein kleiner Bär ging über die Straße; naïve",
)
NEW = 24
NO_POSITIONS = {"bloom", "mpt", "t5", "bart"}  # rows of a batch go in step


@cache
def models(name: str) -> tuple[Any, Any, Any, Any]:
    return (*tiny_target(name), *tiny_draft(name))


def inputs_of(tokenizer: Any, num_rows: int) -> dict[str, torch.Tensor]:
    rows = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS[:num_rows]]
    return left_padded(rows)


@cache
def plain(name: str, num_rows: int) -> torch.Tensor:
    target, tokenizer, _, _ = models(name)
    ids: torch.Tensor = target.generate(**inputs_of(tokenizer, num_rows), max_new_tokens=NEW, do_sample=False)
    return ids


def outputs_of(name: str, num_rows: int) -> list[list[int]]:
    return plain(name, num_rows)[:, -NEW:].tolist()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_outputs_vary(name: str) -> None:
    """Otherwise the other tests here would compare repeated ids."""
    rows = outputs_of(name, 3)
    assert all(len(set(row)) >= NEW // 3 for row in rows)
    assert len({tuple(row) for row in rows}) == 3


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_draft_of_another_tokenizer(name: str, num_rows: int) -> None:
    target, tokenizer, draft, draft_tokenizer = models(name)
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=3)
    ids = assistant.generate(target, **inputs_of(tokenizer, num_rows), max_new_tokens=NEW, do_sample=False)
    assert ids.tolist() == plain(name, num_rows).tolist()
    assert assistant.stats.strategy == "cross-tokenizer"
    assert assistant.stats.num_candidate_tokens > 0
    in_step = any("in step" in reason for reason in assistant.stats.fallbacks)
    assert in_step == (num_rows > 1 and name in NO_POSITIONS)


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_targets_own_text_with_a_fifth_spoilt(name: str, num_rows: int) -> None:
    target, tokenizer, _, _ = models(name)
    drafter = OracleDrafter(outputs_of(name, num_rows), target.get_output_embeddings().weight.shape[0])
    assistant = uag.Assistant(None, None, tokenizer, drafter=drafter, num_candidate_tokens=4)
    ids, num_passes = count_calls(
        target,
        lambda: assistant.generate(target, **inputs_of(tokenizer, num_rows), max_new_tokens=NEW, do_sample=False),
    )
    assert ids.tolist() == plain(name, num_rows).tolist()
    stats = assistant.stats
    assert 0 < stats.num_accepted_tokens < stats.num_candidate_tokens
    assert stats.num_target_forwards == num_passes < NEW
    assert stats.num_output_tokens == NEW * num_rows
    assert not drafter.is_running


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_rows_in_step_and_their_records(name: str) -> None:
    """With `return_dict_in_generate` rows go in step, and scores and logits are those of plain decoding."""
    target, tokenizer, _, _ = models(name)
    options: dict[str, Any] = {
        "max_new_tokens": NEW, "do_sample": False,
        "return_dict_in_generate": True, "output_scores": True, "output_logits": True,
    }  # fmt: skip
    inputs = inputs_of(tokenizer, 3)
    expected = target.generate(**inputs, **options)
    drafter = OracleDrafter(outputs_of(name, 3), target.get_output_embeddings().weight.shape[0], spoil=11)
    assistant = uag.Assistant(None, None, tokenizer, drafter=drafter, num_candidate_tokens=4)
    found = assistant.generate(target, **inputs, **options)
    assert found.sequences.tolist() == expected.sequences.tolist()
    assert type(found) is type(expected)
    assert found.keys() == expected.keys()
    for kind in ("scores", "logits"):
        torch.testing.assert_close(torch.stack(found[kind]), torch.stack(expected[kind]), rtol=1e-3, atol=1e-3)
    assert 0 < assistant.stats.num_accepted_tokens < assistant.stats.num_candidate_tokens


@pytest.mark.parametrize("door", ["generate", "custom_generate", "install"])
@pytest.mark.parametrize("name", STATEFUL)
def test_a_state_that_cannot_be_rewound_is_refused(name: str, door: str) -> None:
    model_type, options = STATEFUL[name]
    target = tiny_model(model_type, 300, **options)
    draft, draft_tokenizer = tiny_draft("gpt2")
    _, tokenizer = tiny_target("gpt2")
    inputs = torch.arange(1, 9)[None]

    def run() -> None:
        if door == "install":
            pair = {"assistant_model": draft, "tokenizer": tokenizer, "assistant_tokenizer": draft_tokenizer}
            target.generate(inputs, **pair, max_new_tokens=4)
            return
        assistant = uag.Assistant(draft, draft_tokenizer, tokenizer)
        if door == "generate":
            assistant.generate(target, inputs, max_new_tokens=4)
        target.generate(inputs, custom_generate=assistant, max_new_tokens=4)

    def refused() -> None:
        with pytest.raises(UnsupportedError, match=rf"{type(target).__name__}.*cannot be rewound"):
            run()

    uag.install()
    try:
        _, num_passes = count_calls(target, refused)
    finally:
        uag.uninstall()
    assert num_passes == 0


@pytest.mark.parametrize("name", STATEFUL)
def test_a_draft_that_cannot_be_rewound_is_refused(name: str) -> None:
    model_type, options = STATEFUL[name]
    with pytest.raises(UnsupportedError, match=r"The draft.*cannot be rewound"):
        uag.Assistant(tiny_model(model_type, 300, **options))
