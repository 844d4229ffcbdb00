"""The contract with vLLM's `custom_class` method, on its buffers: nothing that uag returns can crash the engine."""

import logging
import os
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.engine import DRAFT, TARGET, Clock, config, demo_engine, demo_proposer
from tests.support.models import tiny_of_class
from tests.support.trained import prompt
from uag.errors import LoadingError, OptionError, UnsupportedError
from uag.proposal import Proposal
from uag.vllm import Proposer
from uag.vllm.drafter import open_for_requests


def test_what_cannot_work_is_refused_before_any_weights_are_read() -> None:
    with pytest.raises(LoadingError, match="no model folder"):
        Proposer(config(TARGET, "./no/such/folder"))
    without_tokenizer = config(TARGET, DRAFT)
    without_tokenizer.model_config.tokenizer = None
    with pytest.raises(OptionError, match=r"vLLM has no tokenizer for the target\. Pass its name"):
        Proposer(without_tokenizer)
    without_tokenizer.additional_config["uag"]["tokenizer"] = TARGET
    assert Proposer(without_tokenizer).is_drafting


@pytest.mark.parametrize("is_hybrid", [False, True])
def test_a_target_with_a_state_is_refused(is_hybrid: bool) -> None:
    with pytest.raises(UnsupportedError, match="cannot draft for a target with recurrent states"):
        Proposer(config(TARGET, DRAFT, is_hybrid=is_hybrid, is_attention_free=not is_hybrid))


@pytest.mark.parametrize(
    ("class_name", "reason"),
    [
        ("Lfm2ForCausalLM", "keeps states, which cannot be padded or merged"),
        ("T5ForConditionalGeneration", "is an encoder-decoder, which has no source text"),
    ],
)
def test_a_draft_that_cannot_serve_requests_is_refused(class_name: str, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        open_for_requests(tiny_of_class(class_name), 90)


def test_requests_are_drafted_to_their_end() -> None:
    served, running = demo_proposer(), demo_engine()
    while running.unfinished():
        for candidates in running.step(served, running.unfinished()):
            assert len(candidates) <= 5
            assert all(type(i) is int and 0 <= i < 1536 for i in candidates)
    assert running.num_accepted > 0.5 * running.num_steps
    assert served.stats.failures == {}
    # Accepted candidates are found one round later; the last round's never are.
    assert 0 < served.stats.num_accepted_tokens <= running.num_accepted
    assert served.stats.num_accepted_tokens < served.stats.num_candidate_tokens


@pytest.mark.parametrize("num_candidates", [1, 2, 9])
def test_never_more_candidates_than_vllm_asks_for(num_candidates: int) -> None:
    served, running = demo_proposer(num_candidates=num_candidates), demo_engine()
    lengths = [len(row) for row in served.propose(*running.buffers([0, 1, 2]))]
    assert max(lengths) == num_candidates


def test_by_default_slow_steps_are_drafted_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/unit/vllm/test_pace.py has steps for which drafting does not pay off."""
    clock = Clock()
    monkeypatch.setattr("uag.vllm.drafter.time", clock)
    served, running = demo_proposer(min_confidence=None), demo_engine()
    while running.unfinished():
        clock.now += 1.0
        running.step(served, running.unfinished())
    stats = served.stats
    assert stats.failures == {}
    assert stats.num_rounds + stats.num_paused_rounds >= 5
    assert stats.num_rounds > stats.num_paused_rounds


def test_a_prompt_that_is_not_read_yet_gets_nothing() -> None:
    served, running = demo_proposer(), demo_engine()
    first = running.step(served, [0, 1, 2], partial={1})
    assert [bool(row) for row in first] == [True, False, True]
    assert all(running.step(served, [2, 1, 0]))


@pytest.mark.parametrize("room", [0, 1, 2, 3])
def test_nothing_is_drafted_past_the_longest_length(room: int) -> None:
    """Of the `room` ids that are left, one is the target's own."""
    running = demo_engine()
    served = demo_proposer(max_length=len(running.context(1)) + room)
    lengths = [len(row) for row in served.propose(*running.buffers([1]))]
    assert lengths == [max(0, room - 1)]


@pytest.mark.parametrize("vocab_size", [100, 700])
def test_no_id_outside_the_head(vocab_size: int) -> None:
    served, running = demo_proposer(vocab_size=vocab_size), demo_engine()
    proposed = []
    while running.unfinished():
        proposed += [i for row in running.step(served, running.unfinished()) for i in row]
    assert proposed
    assert max(proposed) < vocab_size


@pytest.mark.parametrize(
    "ids", [[1, 1536, 2], [1, -5, 2], list(range(3, 20))], ids=["beyond the head", "below zero", "too many"]
)
def test_bad_proposals_do_not_reach_vllm(ids: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these would crash the engine; they simulate any bug in the drafter."""
    served, running = demo_proposer(), demo_engine()
    bad = [Proposal(i, 1.0) for i in ids]
    monkeypatch.setattr(served._drafter, "propose", lambda contexts, limits: [bad for _ in contexts])
    for row in served.propose(*running.buffers([0, 1])):
        assert row == ids[: len(row)]
        assert 1 <= len(row) <= 5
        assert all(0 <= i < 1536 for i in row)


@pytest.mark.parametrize(
    "ids",
    [[-1] * 30, [10**9] * 30, [0] * 30, [1535] * 30, [5, -1, 99_999, 7] * 8],
    ids=["below zero", "far beyond", "zeros", "last id", "mixed"],
)
def test_contexts_of_any_ids_are_survived(ids: list[int]) -> None:
    """Such as placeholders of images and embeddings, or ids from a faulty engine."""
    served = demo_proposer()
    buffer = np.array([ids, prompt("demo-target", len(ids))], dtype=np.int32)
    sizes = np.array([len(ids)] * 2, dtype=np.int32)
    found = served.propose([[1], [1]], sizes, buffer)
    assert found[1]
    assert served.stats.failures == {}


BROKEN: dict[str, tuple[Any, Any, Any]] = {
    "no requests": ([], np.zeros(0, np.int32), np.zeros((0, 8), np.int32)),
    "no buffer": ([[1]], np.array([4]), None),
    "no sizes": ([[1]], None, np.zeros((1, 8), np.int32)),
    "fewer rows than requests": ([[1], [1]], np.array([4]), np.zeros((1, 8), np.int32)),
    "nothing": (None, None, None),
    "an empty context": ([[1]], np.array([0]), np.zeros((1, 8), np.int32)),
    "a size below zero": ([[1]], np.array([-3]), np.zeros((1, 8), np.int32)),
    "other types": ([[1]], [4], [[1, 2, 3, 4]]),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_calls_that_break_the_contract_are_answered(kind: str) -> None:
    served = demo_proposer()
    sampled = BROKEN[kind][0]
    found = served.propose(*BROKEN[kind])
    assert len(found) == len(sampled or [])
    assert all(row == [] for row in found) or kind == "a size below zero"


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, IndexError, StopIteration, torch.OutOfMemoryError])
def test_an_error_is_logged_once_and_drafting_goes_on(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served, running = demo_proposer(), demo_engine()
    running.step(served, [0, 1])
    drafter: Any = served._drafter
    forward, calls = drafter.model._call_model, []

    def fails(*arguments: Any) -> Any:
        calls.append(1)
        raise error("made to fail")

    with caplog.at_level(logging.WARNING, logger="vllm.uag"), monkeypatch.context() as patch:
        patch.setattr(drafter.model, "_call_model", fails)
        for _ in range(8):
            assert running.step(served, [1, 0]) == [[], []]
    assert len([record for record in caplog.records if record.name == "vllm.uag"]) == 1
    # Errors occur at steps 1 and 2, with pauses of 1 and 3 steps after them.
    assert list(served.stats.failures.values()) == [len(calls)] == [4]
    assert drafter.model._call_model == forward
    later = [running.step(served, [0, 1]) for _ in range(8)]
    assert any(any(rows) for rows in later)
    assert len(drafter.model.rows) == 2


@pytest.mark.parametrize(
    ("rank", "tensor_parallel", "backend", "drafts"),
    [
        (0, 1, None, True),
        (0, 2, "mp", True),
        (1, 2, "mp", False),
        (2, 2, "mp", True),
        (1, 2, "external_launcher", True),
    ],
)
def test_one_tensor_parallel_rank_drafts(rank: int, tensor_parallel: int, backend: str | None, drafts: bool) -> None:
    options: dict[str, Any] = {"rank": rank, "tensor_parallel": tensor_parallel, "backend": backend}
    made = Proposer(config(TARGET, DRAFT, min_confidence=0.0, **options))
    assert made.is_drafting == drafts
    made.load_model(None)
    assert bool(made.propose(*demo_engine().buffers([0, 1]))[0]) == drafts


@pytest.mark.parametrize("backend", [None, "external_launcher"])
def test_ranks_that_schedule_for_themselves_do_not_go_by_their_clocks(backend: str | None) -> None:
    """All ranks must draft the same candidates."""
    made = Proposer(config(TARGET, DRAFT, backend=backend))
    made.load_model(None)
    assert made._drafter is not None
    assert made._drafter.pace._has_clock == (backend is None)


# ---------------------------------------------------------------------- with vLLM's own classes


def test_vllm_makes_and_calls_the_proposer(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    monkeypatch.setitem(os.environ, "HF_HUB_OFFLINE", "1")
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.spec_decode.custom_class_proposer import create_custom_proposer

    arguments = EngineArgs(
        model=TARGET,
        max_model_len=512,
        dtype="float32",
        speculative_config={"method": "custom_class", "model": "uag.vllm.Proposer", "num_speculative_tokens": 3},
        additional_config={"uag": {"draft": DRAFT, "min_confidence": 0.0}},
    )
    made = create_custom_proposer(arguments.create_engine_config())
    assert type(made) is Proposer
    assert (made.num_candidate_tokens, made.max_length, made.vocab_size, made.is_drafting) == (3, 512, 1536, True)
    made.load_model(None)
    running = demo_engine(max_length=512)
    while running.unfinished():
        running.step(made, running.unfinished())
    assert running.num_accepted > 0
