"""Assistants can be copied and sent to other processes."""

import copy
import pickle
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import DynamicCache

import uag
from tests.support.calls import (
    GREEDY,
    PROMPTS,
    SAMPLED,
    assert_drafted,
    assistant_of,
    compare,
    draft_options,
    left_padded,
    pair,
)
from tests.support.grids import covering
from uag.hf.cache.caches import CACHE


def through_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


WAYS = (copy.deepcopy, copy.copy, through_pickle)
EVERY_WAY = pytest.mark.parametrize("way", WAYS)


@covering("way, is_used, options", WAYS, (True, False), (GREEDY, SAMPLED), strength=1)
def test_a_copy_writes_the_same(way: Callable[[Any], Any], is_used: bool, options: dict[str, Any]) -> None:
    target = pair()[0]
    inputs = left_padded(PROMPTS)
    assistant = assistant_of()
    if is_used:
        compare(target, inputs | options, assistant)
    copied = way(assistant)
    assert copied.stats == assistant.stats
    assert pickle.dumps(copied.lookahead) == pickle.dumps(assistant.lookahead)
    assert is_used == (pickle.dumps(assistant.lookahead) != pickle.dumps(assistant_of().lookahead))
    assert copied.stats is not assistant.stats or way is copy.copy
    assert_drafted(compare(target, inputs | options, copied))
    compare(target, inputs | options, assistant)
    assert assistant.stats.num_candidate_tokens == copied.stats.num_candidate_tokens


def test_a_call_in_another_thread_does_not_disturb_a_copy() -> None:
    """Copying iterated over a deque and dictionaries to which the call adds."""
    assistant = uag.Assistant.from_prompt_lookup()  # copied in a moment, unlike one with a draft or a tokenizer
    is_done, interval = threading.Event(), sys.getswitchinterval()

    def knows(copied: uag.Assistant) -> bool:
        return len(copied.lookahead._costs_by_size) > 1

    def learn() -> None:
        number = 0
        while not is_done.is_set() or number < 2:  # two modes at least
            number += 1
            with assistant._session() as session:
                session.lookahead.begin(1 << number % 9, f"mode {number}")
                for _ in range(40):
                    session.lookahead.costs.learn_target(0, 0.01)
            is_done.wait(1e-4)

    thread = threading.Thread(target=learn)
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        for _ in range(60):
            assert copy.copy(assistant).lookahead is not assistant.lookahead
    finally:
        is_done.set()
        thread.join()
        sys.setswitchinterval(interval)
    with assistant._session():
        assert not knows(copy.copy(assistant))  # what a call in progress learns is not copied
    assert knows(copy.copy(assistant))


@EVERY_WAY
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
        assert copied.options.generator.initial_seed() == 5
        assert copied.options.generator is not generator
    assert (copied.options.sampling, copied.lookahead.min_confidence) == ("rejection", 0.25)
    assert repr(copied) == repr(shared)
    if way is copy.copy:
        assert copied.draft is target
    assert compare(target, inputs | GREEDY, way(uag.Assistant(None, None, tokenizer))).strategy == "plain"
    lookup = way(uag.Assistant.from_prompt_lookup(tokenizer, num_candidate_tokens=3))
    assert compare(target, inputs | GREEDY, lookup).strategy == "prompt-lookup"


def test_a_copy_beside_its_models_shares_them() -> None:
    _, tokenizer, draft, _ = pair()
    assistant = assistant_of()
    together = {"draft": draft, "assistant": assistant, "tokenizer": tokenizer}
    for way in (copy.deepcopy, through_pickle):
        copied = way(together)
        assert copied["assistant"].draft is copied["draft"] is not draft
        assert copied["assistant"].tokenizer is copied["tokenizer"]


@pytest.mark.parametrize("way", [copy.deepcopy, through_pickle])
def test_a_target_that_has_generated_is_as_it_was(way: Callable[[Any], Any], installed: None) -> None:
    """uag leaves nothing on a model or a returned cache that cannot be copied, or that a copy would share."""
    target, inputs = pair()[0], left_padded(PROMPTS[:1])
    before = {name: set(vars(module)) for name, module in target.named_modules()}
    output = target.generate(**inputs, **GREEDY, **draft_options(), return_dict_in_generate=True)
    assert {name: set(vars(module)) for name, module in target.named_modules()} == before
    again = way(target).generate(**inputs, **GREEDY, **draft_options())
    assert again.tolist() == output.sequences.tolist()
    cache = way(output[CACHE])
    assert type(cache) is DynamicCache
    options = GREEDY | {"max_new_tokens": 8}
    longer = {"input_ids": output.sequences}
    expected = target.generate(**longer, **options)
    assert target.generate(**longer, **options, **{CACHE: cache}).tolist() == expected.tolist()
