"""Several assistants, targets or threads at a time: each call is as if it were alone."""

from __future__ import annotations

import copy
import threading
import time
from functools import partial
from typing import Any

import pytest
import torch
from transformers import (
    LogitsProcessor,
)

import uag
from tests.support.calls import (
    PROMPTS,
    assistant_of,
    batch,
    left_padded,
    oracle,
    pair,
)
from tests.support.models import tiny_draft, tiny_target
from uag.errors import UnsupportedError

NEW = 30
GREEDY: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False}


def test_assistants_of_one_target_alternate() -> None:
    target, tokenizer, draft, draft_tokenizer = pair("gpt2")
    other, other_tokenizer = tiny_draft("gpt2")
    inputs = batch(tokenizer)
    expected = target.generate(**inputs, **GREEDY).tolist()
    assistants = [
        uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=3),
        uag.Assistant(other, other_tokenizer, tokenizer, num_candidate_tokens=2),
        uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=5),
    ]
    for assistant in assistants * 2:
        assert assistant.generate(target, **inputs, **GREEDY).tolist() == expected
        assert uag.last_stats(target) is assistant.stats


def test_one_draft_serves_several_targets(installed: None) -> None:
    _, _, draft, draft_tokenizer = pair("gpt2")
    for name in ("gpt2", "llama", "mistral", "gpt2"):
        target, tokenizer = tiny_target(name)
        inputs = batch(tokenizer)
        expected = target.generate(**inputs, **GREEDY).tolist()
        options = {"assistant_model": draft, "tokenizer": tokenizer, "assistant_tokenizer": draft_tokenizer}
        assert target.generate(**inputs, **GREEDY, **options).tolist() == expected


def test_calls_in_threads(installed: None) -> None:
    """Through the installed door overlapping calls get an assistant each."""
    target, tokenizer, draft, draft_tokenizer = pair("gpt2")
    inputs = batch(tokenizer)
    expected = target.generate(**inputs, **GREEDY).tolist()
    found: list[Any] = []
    options = {"assistant_model": draft, "tokenizer": tokenizer, "assistant_tokenizer": draft_tokenizer}

    def run() -> None:
        found.append(target.generate(**inputs, **GREEDY, **options).tolist())

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 3


def test_two_assistants_share_a_draft_in_two_threads() -> None:
    """Each has a cache of its own; the draft model has none."""
    target = pair()[0]
    cases = []
    for number in range(4):
        inputs = left_padded([[7 + number, 3, 9], PROMPTS[number % 3]][: 1 + number % 2])
        cases.append((inputs, target.generate(**inputs, **GREEDY).tolist()))
    wrong: list[str] = []

    def work(first: int) -> None:
        assistant = assistant_of()
        for turn in range(6):
            inputs, expected = cases[(first + turn) % 4]
            try:
                if assistant.generate(target, **inputs, **GREEDY).tolist() != expected:
                    wrong.append(f"thread {first}, turn {turn}")
            except Exception as error:  # noqa: BLE001 - a thread's errors would be lost
                wrong.append(repr(error))
            time.sleep(0)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not wrong


class CallsGenerate(LogitsProcessor):
    def __init__(self, run: Any) -> None:
        self.run = run

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.run()
        return scores


def test_an_assistant_in_use_says_so() -> None:
    target, tokenizer, draft, draft_tokenizer = pair("gpt2")
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer)
    inputs = batch(tokenizer)
    processor = CallsGenerate(lambda: assistant.generate(target, **inputs, **GREEDY))
    with pytest.raises(UnsupportedError, match="in the middle of another call"):
        assistant.generate(target, **inputs, **GREEDY, logits_processor=[processor])
    expected = target.generate(**inputs, **GREEDY).tolist()
    assert assistant.generate(target, **inputs, **GREEDY).tolist() == expected  # and it is free again


# ---------------------------------------------------------------------- hooks on the target


class Steers:
    """Adds one vector a row to what a layer gives, as steering and ablation tools do."""

    def __init__(self, num_rows: int) -> None:
        vectors = torch.randn((num_rows, 1, 32), generator=torch.Generator().manual_seed(7))
        self.vectors = 0.5 * vectors

    def __call__(self, module: Any, args: Any, output: Any) -> Any:
        return (output[0] + self.vectors, *output[1:]) if isinstance(output, tuple) else output + self.vectors


@pytest.mark.parametrize("kind", ["object", "method", "partial"])
@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("trust_changes", [False, True])
def test_a_hook_with_a_vector_for_each_row(num_rows: int, kind: str, trust_changes: bool) -> None:
    target, tokenizer = pair(eos=True)[:2]
    inputs = left_padded(PROMPTS[:num_rows])
    steers = Steers(num_rows)
    hook = {"object": steers, "method": steers.__call__, "partial": partial(Steers.__call__, steers)}[kind]
    handle = target.model.layers[0].register_forward_hook(hook)
    try:
        expected = target.generate(**inputs, **GREEDY, pad_token_id=0)
        ends = {(expected[row, inputs["input_ids"].shape[1] :] != 0).sum().item() for row in range(num_rows)}
        assert len(ends) == num_rows, "the rows were to end at different steps"
        assistant = oracle(target, tokenizer, expected, inputs["input_ids"].shape[1])
        assistant.trust_changes = trust_changes
        output = assistant.generate(target, **inputs, **GREEDY, pad_token_id=0)
    finally:
        handle.remove()
    assert output.tolist() == expected.tolist()
    stats = assistant.stats
    assert (0 < stats.num_accepted_tokens < stats.num_candidate_tokens) is trust_changes
    if trust_changes:
        what = "a forward hook on LlamaDecoderLayer may treat the rows of a batch differently"
        assert stats.fallbacks == [f"rows advance in lockstep: {what}"] * (num_rows > 1)


def test_hooks_of_known_libraries_leave_rows_apart() -> None:
    target = copy.deepcopy(pair()[0])
    target.enable_input_require_grads()  # a hook of transformers' own, as fine-tuning with adapters sets it
    torch.nn.utils.spectral_norm(target.model.layers[0].mlp.up_proj).eval()  # one of torch's
    assistant = assistant_of()
    inputs = left_padded(PROMPTS)
    expected = target.generate(**inputs, **GREEDY)
    assert assistant.generate(target, **inputs, **GREEDY).tolist() == expected.tolist()
    assert not assistant.stats.fallbacks
    assert assistant.stats.num_candidate_tokens > 0
