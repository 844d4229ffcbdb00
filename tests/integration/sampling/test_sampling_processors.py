"""Sampling with the caller's processors and criteria: their inputs and the output are the same as in plain decoding."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from tests.support.calls import PROMPTS, left_padded
from tests.support.sampling import assert_same, oracle, sample

ROUNDING = 5e-5  # these models' scores reach 60, ten times a trained model's


class Recorder(LogitsProcessor):
    """Keeps state, writes into its scores, and draws from the generator: everything that plain decoding allows."""

    def __init__(self, draws: bool = True) -> None:
        self.calls: list[tuple[list[list[int]], torch.Tensor]] = []
        self.draws = draws

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.calls.append((input_ids.tolist(), scores.clone()))
        if self.draws:
            scores += 0.3 * torch.randn(scores.shape)
        scores[:, len(self.calls) % scores.shape[-1]] += 2.0
        return scores


class Counter(StoppingCriteria):
    """Ends a row at its third even id, and draws from the generator."""

    def __init__(self) -> None:
        self.calls: list[list[list[int]]] = []
        self.num_scores: list[int | None] = []
        self.num_even: torch.Tensor | None = None

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        self.calls.append(input_ids.tolist())
        self.num_scores.append(None if scores is None else len(scores))
        torch.rand(2)
        even = (input_ids[:, -1] % 2 == 0).long()
        self.num_even = even if self.num_even is None else self.num_even + even
        return self.num_even >= 6


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("draws", [False, True])
def test_processors_and_criteria_of_the_user(target: Any, num_rows: int, draws: bool) -> None:
    inputs = left_padded(PROMPTS[:num_rows])
    accepted = 0
    for seed in range(3):
        seen = []
        expected: torch.Tensor | None = None
        for door in ("plain", "ours"):
            recorder, counter = Recorder(draws), Counter()
            options = {
                "logits_processor": LogitsProcessorList([recorder]),
                "stopping_criteria": StoppingCriteriaList([counter]),
                "top_p": 0.95,
            }
            generate = target.generate
            if expected is not None:
                assistant = oracle(target, expected, inputs["input_ids"].shape[1])
                generate = partial(assistant.generate, target)
            output, state = sample(generate, seed, **inputs, **options)
            seen.append((output, state, recorder, counter))
            expected = output
            if door == "ours":
                accepted += assistant.stats.num_accepted_tokens
                assert "Recorder, Counter may keep state" in assistant.stats.fallbacks[0]
        (plain, state, recorder, counter), (ours, our_state, our_recorder, our_counter) = seen
        assert ours.tolist() == plain.tolist()
        assert torch.equal(state, our_state)
        assert [ids for ids, _ in our_recorder.calls] == [ids for ids, _ in recorder.calls]
        for (_, scores), (_, our_scores) in zip(recorder.calls, our_recorder.calls, strict=True):
            torch.testing.assert_close(our_scores, scores, atol=ROUNDING, rtol=1e-5)
        assert our_counter.calls == counter.calls
        assert our_counter.num_scores == counter.num_scores
    assert accepted > 0


class Doubles(LogitsProcessor):
    """Returns float64 scores: plain sampling then draws float64 noise, which uses other numbers of the generator."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.double() if input_ids.shape[1] % 3 else scores


class Cuts(LogitsProcessor):
    """Returns fewer scores than the head has."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores[:, : 80 + input_ids.shape[1] % 2]


@pytest.mark.parametrize("processor", [Doubles(), Cuts()], ids=["float64", "narrow"])
def test_scores_of_another_kind(target: Any, processor: LogitsProcessor) -> None:
    for prompts in (PROMPTS[:1], PROMPTS):
        assert assert_same(target, prompts, 3, logits_processor=LogitsProcessorList([processor])).num_accepted_tokens


class BansAll(LogitsProcessor):
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.full_like(scores, -torch.inf) if input_ids.shape[1] == 12 else scores


def test_no_token_left_is_an_error_as_in_plain_decoding(target: Any) -> None:
    inputs = left_padded(PROMPTS[:1])
    expected, _ = sample(target.generate, 3, **inputs, eos_token_id=None)
    for generate in (target.generate, partial(oracle(target, expected, 5).generate, target)):
        with pytest.raises(RuntimeError, match="probability tensor contains either"):
            sample(generate, 3, **inputs, eos_token_id=None, logits_processor=LogitsProcessorList([BansAll()]))
    # Every token suppressed: the position-free path.
    everything = {"suppress_tokens": list(range(target.config.vocab_size))}
    for generate in (target.generate, partial(oracle(target, expected, 5).generate, target)):
        with pytest.raises(RuntimeError, match="probability tensor contains either"):
            sample(generate, 3, **inputs, **everything)


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("processors", [[], [Recorder]])
def test_scores_and_logits(target: Any, num_rows: int, processors: list[type]) -> None:
    inputs = left_padded(PROMPTS[:num_rows])
    wanted = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}

    def options() -> dict[str, Any]:
        return wanted | {
            "logits_processor": LogitsProcessorList([kind() for kind in processors]), "temperature": 0.7, "top_k": 40
        }  # fmt: skip

    expected, state = sample(target.generate, 2, **inputs, **options())
    assistant = oracle(target, expected.sequences, inputs["input_ids"].shape[1])
    output, state_after = sample(partial(assistant.generate, target), 2, **inputs, **options())
    assert assistant.stats.num_accepted_tokens > 0
    assert torch.equal(state, state_after)
    assert output.sequences.tolist() == expected.sequences.tolist()
    for name in ("scores", "logits"):
        mine, plain = getattr(output, name), getattr(expected, name)
        assert len(mine) == len(plain)
        for left, right in zip(mine, plain, strict=True):
            assert left.dtype == right.dtype
            torch.testing.assert_close(left, right, atol=ROUNDING, rtol=1e-5)
