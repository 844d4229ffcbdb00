"""Calls of one assistant that overlap (see test_threads.py for threads)."""

import copy
import pickle
from typing import Any

import pytest
import torch
from transformers import LogitsProcessor

import uag
from tests.support.calls import GREEDY, assistant_of, batch, pair
from uag.assistant import _MAX_SESSIONS
from uag.errors import UnsupportedError


class CallsGenerate(LogitsProcessor):
    def __init__(self, run: Any) -> None:
        self.run = run

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.run()
        return scores


def run_overlapping(assistant: uag.Assistant) -> int:
    """Run a call that starts another one at each step, compare all with plain decoding, and count the inner ones."""
    target, tokenizer = pair("gpt2")[:2]
    given = batch(tokenizer) | GREEDY
    expected = target.generate(**given).tolist()
    inner: list[Any] = []
    processor = CallsGenerate(lambda: inner.append(assistant.generate(target, **given).tolist()))
    assert assistant.generate(target, **given, logits_processor=[processor]).tolist() == expected
    assert inner == [expected] * len(inner)
    return len(inner)


def test_an_assistant_runs_overlapping_calls() -> None:
    assistant = assistant_of("gpt2")
    num_inner = run_overlapping(assistant)
    assert assistant.totals.num_calls == num_inner + 1
    assert 0 < assistant.totals.num_accepted_tokens < assistant.totals.num_candidate_tokens
    assert len(assistant._sessions) == 2  # and the second is used again


def test_a_custom_drafter_in_use_says_so() -> None:
    target, tokenizer, _, _ = pair("gpt2")
    assistant = uag.Assistant.from_prompt_lookup(tokenizer)
    inputs = batch(tokenizer)
    processor = CallsGenerate(lambda: assistant.generate(target, **inputs, **GREEDY))
    with pytest.raises(UnsupportedError, match="in the middle of another call"):
        assistant.generate(target, **inputs, **GREEDY, logits_processor=[processor])
    expected = target.generate(**inputs, **GREEDY).tolist()
    assert assistant.generate(target, **inputs, **GREEDY).tolist() == expected  # and it is free again


def test_many_overlapping_calls_keep_few_sessions() -> None:
    target, tokenizer = pair("gpt2")[:2]
    assistant, inputs = assistant_of("gpt2"), batch(tokenizer)
    num_running = 0

    def nest() -> None:
        nonlocal num_running
        num_running += 1
        if num_running < 2 * _MAX_SESSIONS:
            assistant.generate(target, **inputs, max_new_tokens=1, logits_processor=[CallsGenerate(nest)])

    nest()
    assert assistant.totals.num_calls == 2 * _MAX_SESSIONS - 1
    assert len(assistant._sessions) == _MAX_SESSIONS
    assert not any(session.call for session in assistant._sessions)


def test_an_overlapping_call_does_not_encode_with_the_drafts_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoding changes the state of a fast tokenizer, which another thread may be using."""
    draft_tokenizer = pair("gpt2")[3]
    used: list[str] = []

    def encode(text: str, **options: Any) -> Any:
        used.append(text)
        return type(draft_tokenizer).encode(draft_tokenizer, text, **options)

    assistant = assistant_of("gpt2")
    monkeypatch.setattr(draft_tokenizer, "encode", encode)
    assert run_overlapping(assistant) > 0
    assert used == []


def test_what_overlapping_calls_learn_is_separate() -> None:
    """So is what a copy learns."""
    assistant = uag.Assistant(None, memory=True)
    copied, pickled = copy.copy(assistant), pickle.loads(pickle.dumps(assistant))
    for source, rates in assistant._sessions[0].rates.items():
        before = rates[1]
        rates.learn([1], 0)
        others = [other._sessions[0].rates[source][1] for other in (copied, pickled)]
        assert others == [before, before] != [rates[1]] * 2
