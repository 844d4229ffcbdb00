"""A draft with a fixed-size cache has the same distributions as with a growing one, compiled or not."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import uag
from tests.support.calls import compare, left_padded
from tests.support.models import tiny_draft, tiny_target, twin
from uag.drafting.models.base import KEPT_POSITIONS
from uag.drafting.models.open_draft import open_passes
from uag.errors import UnsupportedError
from uag.projection import Feed
from uag.projection.tree import Node

pytestmark = pytest.mark.usefixtures("few_compilations")


def check_pair(num_rows: int, num_calls: int = 2, num_layers: int = 1) -> uag.Assistant:
    target, tokenizer = tiny_target("llama", num_hidden_layers=num_layers)
    draft, draft_tokenizer = twin(target, tokenizer)
    compiled, usual = (
        uag.Assistant(
            draft, draft_tokenizer, tokenizer, num_candidate_tokens=3, compile_draft=is_compiled, draft_weights="model"
        )
        for is_compiled in (True, False)
    )
    texts = ["The quick brown fox", "One", "two three"][:num_rows]
    inputs = left_padded([tokenizer(text)["input_ids"] for text in texts])
    for do_sample in (False, True)[:num_calls]:
        given = inputs | {"max_new_tokens": 24, "do_sample": do_sample}
        for assistant in (compiled, usual):
            compare(target, given, assistant)
        assert compiled.stats.num_draft_forwards == usual.stats.num_draft_forwards > 8
        assert compiled.stats.num_accepted_tokens == usual.stats.num_accepted_tokens
    return compiled


def test_the_output_stays_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced and guarded as usual, but run eagerly, since a real compiler takes half a minute (marker slow)."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    assistant = check_pair(3)
    assert not assistant.stats.fallbacks
    target, inputs = tiny_target("llama", num_hidden_layers=1)[0], left_padded([[5, 9, 14]] * 3)
    assistant.draft.to(torch.bfloat16)  # the cache of float32 cannot be used any more
    assert compare(target, inputs | {"max_new_tokens": 12, "do_sample": False}, assistant).num_draft_forwards > 4
    assert not assistant.stats.fallbacks
    torch.compiler.reset()


def test_logits_of_the_prompt_are_not_computed() -> None:
    draft, _ = tiny_draft("llama")
    passes, row = open_passes(draft, compile_draft=True), SimpleNamespace(path=[])
    widths: list[int] = []
    draft.lm_head.register_forward_pre_hook(lambda _, args: widths.append(args[0].shape[1]))
    passes.start([row])
    nodes = [Node(None, 5, b"", 0)]
    for draft_id in range(6, 46):
        nodes.append(Node(nodes[-1], draft_id, b"", 0))
    passes.feed([(0, Feed(0, nodes))])
    assert widths == [KEPT_POSITIONS]
    assert [node.probs is not None for node in nodes] == [False] * 33 + [True] * 8


@pytest.mark.slow
@pytest.mark.parametrize("num_rows", [1, 3])
def test_the_output_stays_the_same_with_a_compiler(num_rows: int) -> None:
    assistant = check_pair(num_rows, num_layers=2)
    assert not assistant.stats.fallbacks
    drafter = assistant._sessions[0].drafter
    assert drafter is not None
    assert drafter.counts.compile_s > 0.0
    assert assistant.stats.draft_s < drafter.counts.compile_s  # compilation does not count as drafting
    torch.compiler.reset()


def without_a_compiler(function: Any, example_inputs: Any) -> Any:
    raise RuntimeError("no working C++ compiler")


def recorded_elsewhere(function: Any, example_inputs: Any) -> Any:
    """CUDA graphs fail with an assertion outside the thread that recorded them, when the compiled function runs."""

    def run(*args: Any) -> Any:
        raise AssertionError("graphs belong to another thread")

    return run


@pytest.mark.parametrize(
    ("backend", "reason"),
    [(without_a_compiler, "no working C++ compiler"), (recorded_elsewhere, "graphs belong to another thread")],
)
def test_compiled_passes_that_fail_run_as_they_are(backend: Any, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[Any] = []

    def counted(function: Any, example_inputs: Any) -> Any:
        attempts.append(function)
        return backend(function, example_inputs)

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counted))
    assistant = check_pair(1, 1)
    assert any(reason in fallback for fallback in assistant.stats.fallbacks)
    assert assistant.stats.num_accepted_tokens > 0
    num_attempts = len(attempts)
    target, inputs = tiny_target("llama", num_hidden_layers=1)[0], left_padded([[5, 9, 14]] * 2)
    stats = compare(target, inputs | {"max_new_tokens": 12, "do_sample": False}, assistant)
    assert any(reason in fallback for fallback in stats.fallbacks)
    assert len(attempts) == num_attempts > 0  # it is not tried again for another number of rows
    torch.compiler.reset()


@pytest.mark.parametrize(("name", "reason"), [("t5", "encoder-decoder"), ("mpt", "position_ids|compile")])
def test_drafts_that_cannot_be_compiled_are_refused(name: str, reason: str) -> None:
    draft, tokenizer = tiny_target(name)
    with pytest.raises(UnsupportedError, match=reason):
        uag.Assistant(draft, tokenizer, tokenizer, compile_draft=True)
