"""Through every door, the demo pair drafts, nothing falls back, and the output is plain decoding's."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from transformers import pipeline

import uag
from uag.candidates import CandidateGenerator, CandidateGeneratorMixin
from uag.loading import Pair, load_pair

TEXT = "def read_lines(path):\n"
OPTIONS: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False}


@pytest.fixture(scope="module")
def demo() -> Pair:
    return load_pair()


@pytest.fixture(autouse=True)
def _doors_are_closed() -> Iterator[None]:
    yield
    uag.uninstall()


def ids_of(pair: Pair) -> dict[str, torch.Tensor]:
    return dict(pair.target_tokenizer(TEXT, return_tensors="pt"))


def assistant_of(pair: Pair) -> uag.Assistant:
    return uag.Assistant(pair.draft, pair.draft_tokenizer, pair.target_tokenizer, num_candidate_tokens=4)


def through_assistant(pair: Pair) -> Any:
    return assistant_of(pair).generate(pair.target, **ids_of(pair), **OPTIONS)


def through_custom_generate(pair: Pair) -> Any:
    return pair.target.generate(**ids_of(pair), **OPTIONS, custom_generate=assistant_of(pair))


def through_install(pair: Pair) -> Any:
    uag.install(num_candidate_tokens=4)
    tokenizers = {"tokenizer": pair.target_tokenizer, "assistant_tokenizer": pair.draft_tokenizer}
    return pair.target.generate(**ids_of(pair), **OPTIONS, assistant_model=pair.draft, **tokenizers)


def through_attach(pair: Pair) -> Any:
    tokenizers = {"tokenizer": pair.target_tokenizer, "draft_tokenizer": pair.draft_tokenizer}
    uag.attach(pair.target, pair.draft, **tokenizers, num_candidate_tokens=4)
    try:
        return pair.target.generate(**ids_of(pair), **OPTIONS)
    finally:
        uag.detach(pair.target)


def through_a_pipeline(pair: Pair) -> Any:
    tokenizers = {"tokenizer": pair.target_tokenizer, "draft_tokenizer": pair.draft_tokenizer}
    uag.attach(pair.target, pair.draft, **tokenizers, num_candidate_tokens=4)
    try:
        write = pipeline("text-generation", model=pair.target, tokenizer=pair.target_tokenizer)
        return write(TEXT, return_tensors=True, **OPTIONS)[0]["generated_token_ids"]
    finally:
        uag.detach(pair.target)


DOORS = [through_assistant, through_custom_generate, through_install, through_attach, through_a_pipeline]


@pytest.mark.parametrize("door", DOORS, ids=lambda door: str(door.__name__))
def test_the_demo_pair_drafts_without_a_fallback(demo: Pair, door: Callable[[Pair], Any]) -> None:
    plain = demo.target.generate(**ids_of(demo), **OPTIONS)[0].tolist()
    assert torch.as_tensor(door(demo)).flatten().tolist() == plain
    stats = uag.last_stats(demo.target)
    assert stats.fallbacks == []
    assert stats.accepted_by_source.get("draft model", 0) > 0
    assert stats.num_target_forwards < len(plain) - ids_of(demo)["input_ids"].shape[1]


def test_the_candidate_generator_drafts_without_a_fallback(demo: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = demo.target.generate(**ids_of(demo), **OPTIONS)
    proposed: list[list[int]] = []
    propose = CandidateGenerator._propose

    def noting(self: CandidateGenerator, ids: list[int]) -> list[int]:
        proposed.append(propose(self, ids))
        return proposed[-1]

    monkeypatch.setattr(CandidateGenerator, "_propose", noting)
    demo.target.generate(**ids_of(demo), max_new_tokens=1, custom_generate=assistant_of(demo))
    before = uag.last_stats(demo.target)
    kind = type(demo.target)
    monkeypatch.setattr(demo.target, "__class__", type("Target", (CandidateGeneratorMixin, kind), {}))
    tokenizers = {"tokenizer": demo.target_tokenizer, "assistant_tokenizer": demo.draft_tokenizer}
    assert demo.target.generate(**ids_of(demo), **OPTIONS, assistant_model=demo.draft, **tokenizers).equal(plain)
    assert any(proposed)
    assert len(proposed) < OPTIONS["max_new_tokens"]  # some candidates were accepted
    assert uag.last_stats(demo.target) is before  # which a fall-back would have replaced
