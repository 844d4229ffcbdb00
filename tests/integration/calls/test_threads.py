"""Calls that overlap, in several threads or inside each other: each writes and draws what it does alone."""

import copy
import pickle
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationMixin

import uag
from tests.support.callers import OracleDrafter
from tests.support.calls import GREEDY, PROMPTS, SAMPLED, assistant_of, batch, left_padded, pair
from uag.assistant import _MAX_SESSIONS
from uag.drafting import Ask
from uag.errors import UnsupportedError
from uag.hf.models import head_size
from uag.hf.trials import _known
from uag.proposal import Proposal

NUM_ROUNDS = 2


def run_together(streams: list[Callable[[], Any]]) -> list[list[Any]]:
    """Run each stream several times in a thread of its own, all at once, and return what each run returned."""
    barrier = threading.Barrier(len(streams))

    def loop(stream: Callable[[], Any]) -> list[Any]:
        barrier.wait()
        return [stream() for _ in range(NUM_ROUNDS)]

    with ThreadPoolExecutor(len(streams)) as pool:
        return list(pool.map(loop, streams))


def sampled(seed: int, make: Callable[[torch.Generator], uag.Assistant], num_rows: int) -> Callable[[], Any]:
    def stream() -> Any:
        generator = torch.Generator().manual_seed(seed)
        ids = make(generator).generate(pair()[0], **left_padded(PROMPTS[:num_rows]), **SAMPLED)
        return ids.tolist(), generator.get_state().tolist()

    return stream


def drafting(generator: torch.Generator) -> uag.Assistant:
    assistant = assistant_of()
    assistant.options.generator = generator
    return assistant


def without_draft(generator: torch.Generator) -> uag.Assistant:
    return uag.Assistant(None, generator=generator)


def default_draws() -> list[list[float]]:
    """Seeded draws from the process's three default generators, slow enough that calls run between them."""
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002
    draws = []
    for _ in range(150):
        draws.append([torch.rand(()).item(), random.random(), np.random.rand()])  # noqa: NPY002
        torch.ones(20, 20).mm(torch.ones(20, 20))
        threading.Event().wait(1e-4)
    return draws


def test_eight_threads_get_what_they_get_alone() -> None:
    other = pair("gpt2")[0]
    shared = assistant_of(length=None)

    def greedy() -> Any:
        return shared.generate(pair()[0], **left_padded(PROMPTS), **GREEDY).tolist()

    def plain() -> Any:
        return other.generate(**left_padded(PROMPTS[:2]), **GREEDY).tolist()

    with_generators = [sampled(seed, drafting, num_rows) for seed, num_rows in ((1, 1), (2, 3))]
    with_generators += [sampled(seed, without_draft, num_rows) for seed, num_rows in ((3, 1), (4, 3))]
    streams = [greedy, greedy, plain, default_draws, *with_generators]
    alone = [stream() for stream in streams]
    _known.clear()  # trials run beside the other streams, too
    for expected, runs in zip(alone, run_together(streams), strict=True):
        assert runs == [expected] * NUM_ROUNDS


def test_drafter_that_draws_nothing_takes_back_no_draw_of_another_thread() -> None:
    draws: list[float] = []

    class BesideDraws(OracleDrafter):
        draws = False

        def propose(self, ask: Ask) -> list[list[Proposal]]:
            thread = threading.Thread(target=lambda: draws.append(torch.rand(()).item()))
            thread.start()
            thread.join()
            return super().propose(ask)

    options = left_padded(PROMPTS) | GREEDY
    expected = pair()[0].generate(**options)[:, max(map(len, PROMPTS)) :].tolist()
    drafter = BesideDraws(expected, head_size(pair()[0]))
    torch.manual_seed(7)
    uag.Assistant(None, drafter=drafter, num_candidate_tokens=3).generate(pair()[0], **options)
    torch.manual_seed(7)
    assert draws == [torch.rand(()).item() for _ in draws]
    assert len(draws) > 3


def test_calls_that_share_the_default_generator_draw_different_samples() -> None:
    """Equal prompts in several threads must not get equal samples, as two calls in turn do not."""
    barrier = threading.Barrier(4)

    def start(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if input_ids.shape[1] == len(PROMPTS[0]):
            barrier.wait()  # all four are in their first step
        return scores

    def call(_: int) -> Any:
        options = left_padded(PROMPTS[:1]) | SAMPLED | {"logits_processor": [start]}
        return assistant_of().generate(pair()[0], **options).tolist()

    pair()  # not first by four threads at once
    torch.manual_seed(0)
    with ThreadPoolExecutor(4) as pool:
        assert len({str(output) for output in pool.map(call, range(4))}) == 4


def test_prompt_pass_runs_outside_the_kernels_for_decoding(monkeypatch: Any) -> None:
    """transformers reserves kernels that copy expert weights per token for the passes after the prompt."""
    inside, widths = [], []

    @contextmanager
    def noted(self: Any) -> Any:
        inside.append(True)
        yield
        inside.pop()

    target, assistant, passes = pair()[0], assistant_of(), []
    assistant.options.trust_changes = True  # the hook

    def note(_: Any, __: Any, kwargs: dict[str, Any]) -> None:
        widths.append((kwargs["input_ids"].shape[1], bool(inside)))

    monkeypatch.setattr(GenerationMixin, "_optimize_model_for_decode", noted)
    with target.register_forward_pre_hook(note, with_kwargs=True):
        for generate in (target.generate, partial(assistant.generate, target)):
            widths.clear()
            generate(**left_padded(PROMPTS[:1]), **GREEDY)
            passes.append(list(widths))
    assert assistant.stats.num_accepted_tokens > 0
    for first, *others in passes:
        assert first == (len(PROMPTS[0]), False)
        assert others
        assert all(is_inside for _, is_inside in others)


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
