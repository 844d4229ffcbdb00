"""Through every door, the demo pair drafts, nothing falls back, and the output is plain decoding's."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import pipeline

import uag
from tests.conftest import detach_all
from uag.candidates import CandidateGenerator, CandidateGeneratorMixin
from uag.loading import Pair, load_pair

TEXT = "def read_lines(path):\n"
OPTIONS: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False}


@pytest.fixture(scope="module")
def demo() -> Pair:
    return load_pair()


@pytest.fixture
def given(demo: Pair) -> Iterator[dict[str, Any]]:
    """The arguments of a call; the doors are closed after it."""
    yield {**demo.target_tokenizer(TEXT, return_tensors="pt"), **OPTIONS}
    uag.uninstall()
    detach_all()


def draft_of(pair: Pair) -> dict[str, Any]:
    tokenizers = {"tokenizer": pair.target_tokenizer, "assistant_tokenizer": pair.draft_tokenizer}
    return {"assistant_model": pair.draft, **tokenizers}


def through(door: str, pair: Pair, given: dict[str, Any]) -> Any:
    assistant = uag.Assistant(pair.draft, pair.draft_tokenizer, pair.target_tokenizer, num_candidate_tokens=4)
    if door == "assistant":
        return assistant.generate(pair.target, **given)
    if door == "custom_generate":
        return pair.target.generate(**given, custom_generate=assistant)
    if door == "install":
        uag.install(num_candidate_tokens=4)
        return pair.target.generate(**given, **draft_of(pair))
    tokenizers = {"tokenizer": pair.target_tokenizer, "draft_tokenizer": pair.draft_tokenizer}
    uag.attach(pair.target, pair.draft, **tokenizers, num_candidate_tokens=4)
    if door == "attach":
        return pair.target.generate(**given)
    write = pipeline("text-generation", model=pair.target, tokenizer=pair.target_tokenizer)
    return write(TEXT, return_tensors=True, **OPTIONS)[0]["generated_token_ids"]


@pytest.mark.parametrize("door", ["assistant", "custom_generate", "install", "attach", "pipeline"])
def test_the_demo_pair_drafts_without_a_fallback(demo: Pair, given: dict[str, Any], door: str) -> None:
    plain = demo.target.generate(**given)[0].tolist()
    assert torch.as_tensor(through(door, demo, given)).flatten().tolist() == plain
    stats = uag.last_stats(demo.target)
    assert stats.fallbacks == []
    assert stats.accepted_by_source.get("draft model", 0) > 0
    assert stats.num_target_forwards < OPTIONS["max_new_tokens"]


def test_the_candidate_generator_drafts(demo: Pair, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    plain, proposed, propose = demo.target.generate(**given), list[list[int]](), CandidateGenerator._propose

    def noting(self: CandidateGenerator, ids: list[int]) -> list[int]:
        proposed.append(propose(self, ids))
        return proposed[-1]

    monkeypatch.setattr(CandidateGenerator, "_propose", noting)
    through("custom_generate", demo, given)
    before = uag.last_stats(demo.target)
    kind = type(demo.target)
    monkeypatch.setattr(demo.target, "__class__", type("Target", (CandidateGeneratorMixin, kind), {}))
    assert demo.target.generate(**given, **draft_of(demo)).equal(plain)
    assert any(proposed)
    assert len(proposed) < OPTIONS["max_new_tokens"]  # some candidates were accepted
    assert uag.last_stats(demo.target) is before  # which a fall-back would have replaced
