"""Assistants can be copied and sent to other processes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import DynamicCache, LogitsProcessor

import uag
from tests.support.calls import GREEDY, PROMPTS, SAMPLED, assistant_of, compare, left_padded, pair, seeded


def through_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


WAYS = pytest.mark.parametrize("way", [copy.deepcopy, copy.copy, through_pickle])
MODES = pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])


@MODES
@pytest.mark.parametrize("is_used", [False, True])
@WAYS
def test_a_copy_writes_the_same(way: Callable[[Any], Any], is_used: bool, options: dict[str, Any]) -> None:
    target = pair()[0]
    inputs = left_padded(PROMPTS)
    assistant = assistant_of()
    expected = seeded(3, target.generate, **inputs, **options).tolist()
    if is_used:
        assert seeded(3, assistant.generate, target, **inputs, **options).tolist() == expected
    copied = way(assistant)
    assert copied.stats == assistant.stats
    assert copied.stats is not assistant.stats or way is copy.copy
    assert seeded(3, copied.generate, target, **inputs, **options).tolist() == expected
    assert 0 < copied.stats.num_accepted_tokens < copied.stats.num_candidate_tokens
    assert seeded(3, assistant.generate, target, **inputs, **options).tolist() == expected
    assert assistant.stats.num_candidate_tokens == copied.stats.num_candidate_tokens


@WAYS
def test_every_option_travels(way: Callable[[Any], Any]) -> None:
    target, tokenizer = pair()[:2]
    generator = torch.Generator().manual_seed(5)
    options: dict[str, Any] = {"prompt_lookup": False, "sampling": "rejection"}
    shared = uag.Assistant(target, tokenizer, tokenizer, generator=generator, min_confidence=0.25, **options)
    copied = way(shared)
    inputs = left_padded(PROMPTS)
    found = [one.generate(target, **inputs, **SAMPLED).tolist() for one in (shared, copied)]
    if way is not copy.copy:  # which shares the generator
        assert found[0] == found[1]
        assert copied.generator.initial_seed() == 5
        assert copied.generator is not generator
    assert (copied.sampling, copied.lookahead.min_confidence) == ("rejection", 0.25)
    assert repr(copied) == repr(shared)
    if way is copy.copy:
        assert copied.draft is target
    assert compare(target, inputs | GREEDY, way(uag.Assistant(None, None, tokenizer))).strategy == "plain"
    lookup = way(uag.Assistant.from_prompt_lookup(tokenizer, num_candidate_tokens=3))
    assert compare(target, inputs | GREEDY, lookup).strategy == "prompt-lookup"


@WAYS
def test_what_was_learnt_travels(way: Callable[[Any], Any]) -> None:
    target = pair()[0]
    assistant = assistant_of(length=None)
    inputs = left_padded(PROMPTS)
    assistant.generate(target, **inputs, **GREEDY)
    copied = way(assistant)
    assert pickle.dumps(copied.lookahead) == pickle.dumps(assistant.lookahead)
    assert pickle.dumps(copied.lookahead) != pickle.dumps(assistant_of(length=None).lookahead)


def test_a_copy_beside_its_models_shares_them() -> None:
    _, tokenizer, draft, draft_tokenizer = pair()
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer)
    together = {"draft": draft, "assistant": assistant, "tokenizer": tokenizer}
    for way in (copy.deepcopy, through_pickle):
        copied = way(together)
        assert copied["assistant"].draft is copied["draft"] is not draft
        assert copied["assistant"].tokenizer is copied["tokenizer"]


class CopiesInTheMiddle(LogitsProcessor):
    """Copies the assistant from inside its call."""

    def __init__(self, assistant: uag.Assistant) -> None:
        self.assistant = assistant
        self.copies: list[uag.Assistant] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if not self.copies:
            self.copies.append(through_pickle(self.assistant))
        return scores


def test_a_copy_of_a_busy_assistant_is_free() -> None:
    target = pair()[0]
    assistant = assistant_of()
    inputs = left_padded(PROMPTS)
    expected = target.generate(**inputs, **GREEDY).tolist()
    processor = CopiesInTheMiddle(assistant)
    assert assistant.generate(target, **inputs, **GREEDY, logits_processor=[processor]).tolist() == expected
    assert processor.copies[0].generate(target, **inputs, **GREEDY).tolist() == expected


@pytest.mark.parametrize("way", [copy.deepcopy, through_pickle])
def test_a_target_that_has_generated_is_as_it_was(way: Callable[[Any], Any], installed: None) -> None:
    """uag leaves nothing on a model or a returned cache that cannot be copied, or that a copy would share."""
    target, tokenizer, draft, draft_tokenizer = pair()
    inputs = left_padded(PROMPTS[:1])
    before = {name: set(vars(module)) for name, module in target.named_modules()}
    kwargs = {"assistant_model": draft, "tokenizer": tokenizer, "assistant_tokenizer": draft_tokenizer}
    output = target.generate(**inputs, **GREEDY, **kwargs, return_dict_in_generate=True)
    assert {name: set(vars(module)) for name, module in target.named_modules()} == before
    copied = way(target)
    again = copied.generate(**inputs, **GREEDY, **kwargs)
    assert again.tolist() == output.sequences.tolist()
    cache = way(output.past_key_values)
    assert type(cache) is DynamicCache
    options = GREEDY | {"max_new_tokens": 8}
    longer = {"input_ids": output.sequences}
    expected = target.generate(**longer, **options)
    assert target.generate(**longer, **options, past_key_values=cache).tolist() == expected.tolist()
