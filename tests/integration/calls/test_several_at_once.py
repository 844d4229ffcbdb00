"""Calls of one assistant that overlap (see test_threads.py for threads)."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import uag
from tests.support.calls import GREEDY, assistant_of, batch, pair
from uag.assistant import _MAX_SESSIONS
from uag.errors import UnsupportedError


def calling(run: Callable[[], Any]) -> dict[str, Any]:
    """Return options of a call that makes other calls at each step."""
    return {"logits_processor": [lambda input_ids, scores: (run(), scores)[1]]}


def test_an_assistant_runs_overlapping_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """None encodes with the draft's tokenizer, which would change its state while another thread may be using it."""
    assistant = assistant_of("gpt2")
    monkeypatch.setattr(pair("gpt2")[3], "encode", lambda *_, **__: pytest.fail("encoded"))
    target, tokenizer = pair("gpt2")[:2]
    given = batch(tokenizer) | GREEDY
    expected = target.generate(**given).tolist()
    inner: list[Any] = []
    options = calling(lambda: inner.append(assistant.generate(target, **given).tolist()))
    assert assistant.generate(target, **given, **options).tolist() == expected
    assert inner == [expected] * len(inner) != []
    assert assistant.totals.num_calls == len(inner) + 1
    assert 0 < assistant.totals.num_accepted_tokens < assistant.totals.num_candidate_tokens
    assert len(assistant._sessions) == 2  # and the second is used again


def test_a_custom_drafter_in_use_says_so() -> None:
    target, tokenizer, _, _ = pair("gpt2")
    assistant = uag.Assistant.from_prompt_lookup(tokenizer)
    inputs = batch(tokenizer)
    options = calling(lambda: assistant.generate(target, **inputs, **GREEDY))
    with pytest.raises(UnsupportedError, match="in the middle of another call"):
        assistant.generate(target, **inputs, **GREEDY, **options)
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
            assistant.generate(target, **inputs, max_new_tokens=1, **calling(nest))

    nest()
    assert assistant.totals.num_calls == 2 * _MAX_SESSIONS - 1
    assert len(assistant._sessions) == _MAX_SESSIONS
    assert not any(session.call for session in assistant._sessions)


def test_what_overlapping_calls_learn_is_separate() -> None:
    """So is what a copy learns."""
    assistant = uag.Assistant(None, memory=True)
    copied, pickled = copy.copy(assistant), pickle.loads(pickle.dumps(assistant))
    for source, rates in assistant._sessions[0].rates.items():
        before = rates[1]
        rates.learn([1], 0)
        others = [other._sessions[0].rates[source][1] for other in (copied, pickled)]
        assert others == [before, before] != [rates[1]] * 2
