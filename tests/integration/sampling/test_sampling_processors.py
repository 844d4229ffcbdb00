"""Sampling with the caller's processors and criteria: their inputs and the output are the same as in plain decoding."""

import copy
from functools import partial
from typing import Any

import pytest
import torch
from transformers import LogitsProcessor, StoppingCriteria

import uag
from tests.support.calls import PROMPTS, SAMPLED, compare, left_padded, oracle, pair, seeded
from tests.support.grids import covering


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


@covering("draws, num_rows", (False, True), (1, 3))
def test_processors_and_criteria_of_the_user(target: Any, num_rows: int, draws: bool) -> None:
    given = left_padded(PROMPTS[:num_rows]) | SAMPLED | {
        "logits_processor": [Recorder(draws)], "stopping_criteria": [Counter()], "top_p": 0.95
    }  # fmt: skip
    accepted = 0
    for seed in range(3):
        stats = compare(target, given, seed=seed)
        accepted += stats.num_accepted_tokens
        assert "Recorder, Counter may keep state" in stats.fallbacks[0]
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
        given = left_padded(prompts) | SAMPLED | {"logits_processor": [processor]}
        assert compare(target, given).num_accepted_tokens


@pytest.mark.parametrize("is_same", [False, True], ids=["other tokenizer", "same tokenizer"])
def test_a_draft_for_fewer_scores_than_the_head_has(is_same: bool) -> None:
    model, tokenizer, draft, draft_tokenizer = pair("llama")
    sources = (copy.deepcopy(model), tokenizer) if is_same else (draft, draft_tokenizer)
    given = left_padded(PROMPTS) | SAMPLED | {"logits_processor": [Cuts()]}
    stats = compare(model, given, uag.Assistant(*sources, tokenizer, num_candidate_tokens=3))
    assert stats.num_draft_forwards


class BansAll(LogitsProcessor):
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.full_like(scores, -torch.inf) if input_ids.shape[1] == 12 else scores


def test_no_token_left_is_an_error_as_in_plain_decoding(target: Any) -> None:
    given = left_padded(PROMPTS[:1]) | SAMPLED | {"eos_token_id": None}
    assisted = oracle(target, None, seeded(3, target.generate, **given), 5)
    everything = {"suppress_tokens": list(range(target.config.vocab_size))}  # the position-free path
    for banned in ({"logits_processor": [BansAll()]}, everything):
        for generate in (target.generate, partial(assisted.generate, target)):
            with pytest.raises(RuntimeError, match="probability tensor contains either"):
                seeded(3, generate, **given, **banned)


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("processors", [[], [Recorder()]], ids=["none", "recorder"])
def test_scores_and_logits(target: Any, num_rows: int, processors: list[LogitsProcessor]) -> None:
    records = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    options = {"temperature": 0.7, "top_k": 40, "logits_processor": processors}
    given = left_padded(PROMPTS[:num_rows]) | SAMPLED | records | options
    assert compare(target, given, seed=2).num_accepted_tokens > 0
