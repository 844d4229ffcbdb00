"""Thousands of mixed requests in one process: nothing grows, nothing stays behind, the next request is right."""

from __future__ import annotations

import copy
import gc
import random
import tracemalloc
import warnings
from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

import uag
from tests.support.calls import EOS_IDS, left_padded
from tests.support.models import tiny_draft, tiny_target, twin
from uag.drafting import FreeFirst, ModelDrafter
from uag.projection import VocabularyMap
from uag.projection.reader import TargetReader

MAX_NEW = 16


class OwnError(Exception):
    """Raised by the user's own code."""


class Fails(LogitsProcessor):
    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if input_ids.shape[1] >= self.length:
            raise OwnError
        return scores


class Ends(StoppingCriteria):
    """Ends rows at multiples of five; raises at some length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        if input_ids.shape[1] >= self.length:
            raise OwnError
        return input_ids[:, -1] % 5 == 0


class Reader(BaseStreamer):
    """Goes away after some puts."""

    def __init__(self, num_puts: int) -> None:
        self.num_left = num_puts
        self.num_ends = 0

    def put(self, value: torch.Tensor) -> None:
        self.num_left -= 1
        if self.num_left < 0:
            raise OwnError

    def end(self) -> None:
        self.num_ends += 1


@cache
def pair() -> tuple[Any, Any, Any, Any]:
    target, tokenizer = tiny_target("llama", eos_id=EOS_IDS)
    return target, tokenizer, *twin(target, tokenizer)


@cache
def assistants() -> list[uag.Assistant]:
    target, tokenizer, draft, draft_tokenizer = pair()
    other, other_tokenizer = tiny_draft("llama")
    return [
        uag.Assistant(draft, draft_tokenizer, tokenizer),
        uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=3),
        uag.Assistant(other, other_tokenizer, tokenizer, num_candidate_tokens=2),
        uag.Assistant(target, tokenizer, tokenizer, num_candidate_tokens=4),
        uag.Assistant.from_prompt_lookup(tokenizer),
        uag.Assistant(None, None, tokenizer),
    ]


def options_of(rng: random.Random) -> dict[str, Any]:
    lengths = [rng.choice((1, 2, 9, 40)) for _ in range(rng.choice((1, 1, 1, 2, 5)))]
    rows = [[rng.randrange(3, 600) for _ in range(length)] for length in lengths]
    given: dict[str, Any] = {**left_padded(rows), "max_new_tokens": rng.randint(1, MAX_NEW), "pad_token_id": 0}
    given["do_sample"] = rng.random() < 0.5
    if given["do_sample"]:
        given |= {"temperature": rng.choice((0.7, 1.0, 1.5)), "top_k": rng.choice((0, 20))}
        given["top_p"] = rng.choice((1.0, 0.9))
        given["num_return_sequences"] = rng.choice((1, 1, 2))
    extras: tuple[dict[str, Any], ...] = (
        {}, {}, {"repetition_penalty": 1.2}, {"min_new_tokens": 3}, {"stop_strings": ["e", " th", "qu"]},
        {"return_dict_in_generate": True, "output_scores": True}, {"bad_words_ids": [[9], [14, 3]]},
        {"no_repeat_ngram_size": 3}, {"max_time": 60.0},
    )  # fmt: skip
    return given | rng.choice(extras)


def one_request(rng: random.Random, number: int) -> None:
    """Run one request of some kind; compare it where it does not fail on purpose."""
    target, tokenizer, draft, draft_tokenizer = pair()
    given, kind, seed = options_of(rng), rng.random(), rng.randrange(1 << 30)
    assistant = rng.choice(assistants())
    if kind < 0.25:
        fail(assistant, given, rng)
        return
    if kind < 0.35:
        given["stopping_criteria"] = StoppingCriteriaList([Ends(1 << 20)])

    def ours(**options: Any) -> Any:
        if number % 3 or "stop_strings" in options:
            return assistant.generate(target, **options)
        if number % 2:
            return target.generate(**options, custom_generate=assistant)
        uag.install()
        try:
            pieces = {"assistant_model": draft, "tokenizer": tokenizer, "assistant_tokenizer": draft_tokenizer}
            return target.generate(**options, **pieces)
        finally:
            uag.uninstall()

    compare(target, tokenizer, ours, given, seed)


def compare(target: Any, tokenizer: Any, ours: Callable[..., Any], given: dict[str, Any], seed: int) -> None:
    torch.manual_seed(seed)
    plain = {**given, "tokenizer": tokenizer} if "stop_strings" in given else given
    expected, state = target.generate(**plain), torch.get_rng_state()
    torch.manual_seed(seed)
    output = ours(**given)
    if "return_dict_in_generate" in given:
        output, expected = output.sequences, expected.sequences
    assert output.tolist() == expected.tolist()
    assert torch.equal(torch.get_rng_state(), state)


def fail(assistant: uag.Assistant, given: dict[str, Any], rng: random.Random) -> None:
    """Let the user's own code raise in the middle of a call."""
    length = given["input_ids"].shape[1] + rng.randint(0, 6)
    place = rng.randrange(3)
    streamer = None
    if place == 0:
        given["logits_processor"] = LogitsProcessorList([Fails(length)])
    elif place == 1:
        given["stopping_criteria"] = StoppingCriteriaList([Ends(length)])
    else:
        given["streamer"] = streamer = Reader(rng.randint(0, 5))
    try:
        assistant.generate(pair()[0], **given)
    except OwnError as error:
        error.__traceback__ = None
    assert streamer is None or streamer.num_ends == 1


def is_idle(assistant: uag.Assistant) -> bool:
    """Whether an assistant keeps nothing of its last call but what it learnt."""
    drafter: Any = assistant._drafter
    if isinstance(drafter, FreeFirst):
        if any(getattr(source, "_rows", None) for source in drafter.sources):
            return False
        drafter = drafter.model
    if getattr(drafter, "_rows", None) or assistant._lock.locked():
        return False
    passes = drafter.model if isinstance(drafter, ModelDrafter) else None
    return passes is None or (getattr(passes, "_cache", None) is None and not passes.rows)


def resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1] if Path("/proc/self/statm").exists() else "0"
    return int(pages) * 4096


def num_tensors() -> int:
    gc.collect()
    return sum(type(kept) is torch.Tensor for kept in gc.get_objects())


def traced_bytes() -> int:
    """Python's memory without what the bounded memories of text hold (`test_memories_of_text_are_bounded`)."""
    for kept in gc.get_objects():
        if type(kept) is VocabularyMap:
            kept.target_sorted.around.cache_clear()
        elif type(kept) is TargetReader:
            kept.settle.cache_clear()
            kept._children.cache_clear()
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def soak(num: int, max_traced: int, max_resident: int) -> None:
    target, _, draft, _ = pair()
    configs = [copy.deepcopy(model.generation_config.to_dict()) for model in (target, draft)]
    weights = [parameter.clone() for parameter in draft.parameters()]
    rng = random.Random(7)
    for number in range(num // 3):
        one_request(rng, number)
    before = num_tensors()
    tracemalloc.start()
    try:
        for number in range(num // 6):
            one_request(rng, number)
        traced, resident = traced_bytes(), resident_bytes()
        for number in range(num // 2):
            one_request(rng, number)
        after = num_tensors()
        grown, grown_resident = traced_bytes() - traced, resident_bytes() - resident
    finally:
        tracemalloc.stop()
    assert after <= before + 8, f"{after - before} tensors stayed behind"
    assert grown < max_traced, f"Python's memory grew by {grown} bytes"
    assert grown_resident < max_resident, f"the process grew by {grown_resident} bytes"
    assert all(is_idle(assistant) for assistant in assistants())
    assert [model.generation_config.to_dict() for model in (target, draft)] == configs
    assert all(torch.equal(old, new) for old, new in zip(weights, draft.parameters(), strict=True))
    assert not target._forward_pre_hooks
    assert not draft._forward_pre_hooks


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_memories_of_text_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uag.projection.reader.MAX_REMEMBERED", 30)
    monkeypatch.setattr("uag.projection.vocabulary._cache", OrderedDict())
    monkeypatch.setattr("uag.projection.vocabulary._MAX_AROUND", 20)
    monkeypatch.setattr("uag.projection.reader._MAX_PLACES", 20)
    target, draft = tiny_target("llama")[0], tiny_draft("llama")[0]
    # Of its own: what other tests left in the memory of a tokenizer that they share is not bounded here.
    tokenizer, draft_tokenizer = (copy.deepcopy(made("llama")[1]) for made in (tiny_target, tiny_draft))
    before = {id(kept) for kept in gc.get_objects() if type(kept) is TargetReader}
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=4)
    for seed in range(3):
        torch.manual_seed(seed)
        ids = torch.randint(3, 600, (1, 20))
        assistant.generate(target, input_ids=ids, max_new_tokens=24, do_sample=True, pad_token_id=0)
        readers = [kept for kept in gc.get_objects() if type(kept) is TargetReader and id(kept) not in before]
        for name, most in (("settle", 30), ("_children", 20), ("maps.target_sorted.around", 20)):
            sizes = [attrgetter(name)(reader).cache_info().currsize for reader in readers]
            assert 0 < max(sizes) <= most, name


@pytest.mark.slow
def test_sixty_requests() -> None:
    soak(60, 700_000, 64_000_000)


@pytest.mark.slow
def test_two_thousand_requests() -> None:
    soak(2_000, 700_000, 64_000_000)
