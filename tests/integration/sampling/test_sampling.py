"""Sampling with an assistant is plain sampling: the same ids and the same final state of the generator."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import SynthIDTextWatermarkingConfig, WatermarkingConfig

from tests.support.calls import EOS_IDS, PROMPTS, SAMPLED, compare, left_padded, oracle, seeded
from tests.support.grids import covering
from tests.support.models import tiny_draft, tiny_model, tiny_target
from uag.assistant import Assistant


def allowed_tokens(row: int, ids: torch.Tensor) -> list[int]:
    return [i for i in range(5, 90) if (i + int(ids[-1]) + row) % 3]


SYNTH_ID = {"keys": [654, 400, 836, 123, 340, 443, 597, 160, 57, 29], "ngram_len": 4}
ONE_NUMBER = {
    "temperature": 0.6, "top_k": 9, "top_p": 0.8, "top_h": 0.6, "min_p": 0.1, "typical_p": 0.8, "epsilon_cutoff": 0.01,
    "eta_cutoff": 0.01, "repetition_penalty": 1.3, "encoder_repetition_penalty": 1.5, "guidance_scale": 1.4,
    "min_length": 14, "min_new_tokens": 9, "forced_bos_token_id": 40, "forced_eos_token_id": 45,
    "remove_invalid_values": True,
}  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "hot": {"temperature": 1.7},
    **{name: {name: value} for name, value in ONE_NUMBER.items()},
    "no_repeat_ngram": {"no_repeat_ngram_size": 2, "top_k": 6},
    "encoder_no_repeat_ngram": {"encoder_no_repeat_ngram_size": 1},
    "bad_words": {"bad_words_ids": [[9], [14, 3], [21]]},
    "sequence_bias": {"sequence_bias": {(9,): 2.0, (14, 3): 3.0, (40,): -5.0}},
    "prefix_allowed_tokens": {"prefix_allowed_tokens_fn": allowed_tokens},
    "watermark": {"watermarking_config": WatermarkingConfig(bias=2.5)},
    "watermark_selfhash": {"watermarking_config": WatermarkingConfig(seeding_scheme="selfhash", context_width=3)},
    "synth_id": {"watermarking_config": SynthIDTextWatermarkingConfig(**SYNTH_ID)},
    "exponential_decay": {"exponential_decay_length_penalty": (6, 1.4)},
    "suppress": {"suppress_tokens": [3, 9, 18]},
    "begin_suppress": {"begin_suppress_tokens": [3, 9, 18]},
    "renormalize_logits": {"renormalize_logits": True, "top_k": 5},
    "many": {
        **{"temperature": 0.8, "top_k": 30, "top_p": 0.9, "min_p": 0.01},
        **{"repetition_penalty": 1.1, "min_new_tokens": 5},
    },
}
"""Every sampling option that plain `generate` of transformers 5.23 supports."""


@covering("name, num_rows", OPTIONS, (1, 3), strength=1)
def test_every_option(target: Any, name: str, num_rows: int) -> None:
    totals = [0, 0]
    lengths: set[int] = set()
    options = SAMPLED | {"max_new_tokens": 24} | OPTIONS[name]
    for seed in range(4 - num_rows):  # three rows in all
        stats = compare(target, left_padded(PROMPTS[-num_rows:]) | options, seed=seed)
        totals[0] += stats.num_accepted_tokens
        totals[1] += stats.num_candidate_tokens
        lengths.update(len(row) for row in stats.sources)
    assert 0 < totals[0] < totals[1]
    assert len(lengths) > 1, "no row ended early"


def test_num_return_sequences(target: Any) -> None:
    for options in ({}, {"repetition_penalty": 1.3}, {"encoder_no_repeat_ngram_size": 1}, {"top_p": 0.7}):
        for prompts, num in ((PROMPTS[:1], 4), (PROMPTS, 2)):
            given = left_padded(prompts) | SAMPLED | options | {"num_return_sequences": num}
            assert compare(target, given, seed=5).num_accepted_tokens


@pytest.mark.parametrize("length", [1, 2, 5, 11, None])
def test_every_draft_length(target: Any, length: int | None) -> None:
    given = left_padded(PROMPTS) | SAMPLED
    expected = seeded(1, target.generate, **given)
    compare(target, given, oracle(target, None, expected, given["input_ids"].shape[1], length=length), seed=1)


@pytest.mark.parametrize("temperature", [1e-5, 50.0])
@pytest.mark.parametrize("sampling", [None, "rejection"])
def test_errors_that_the_caller_asks_of_numpy_are_not_raised(target: Any, sampling: Any, temperature: float) -> None:
    if sampling is None:
        draft, draft_tokenizer = tiny_draft("llama")
        assistant = Assistant(draft, draft_tokenizer, tiny_target("llama", eos_id=EOS_IDS)[1], num_candidate_tokens=4)
    else:
        assistant = Assistant(target, num_candidate_tokens=4, sampling=sampling)
    with np.errstate(all="raise"):
        assistant.generate(target, **left_padded(PROMPTS) | SAMPLED | {"temperature": temperature})
    assert assistant.stats.num_candidate_tokens > 0


EXTREME: list[dict[str, Any]] = [{"temperature": each} for each in (0.5, 30.0, 2e3)]
EXTREME += [{"temperature": 1e-4, "top_k": 50}, {"repetition_penalty": 1e-3}]
EXTREME += [{"top_p": 0.5, "repetition_penalty": 1.4}]


@covering("options, num_rows", EXTREME, (1, 3), strength=1)
def test_same_tokenizer(target: Any, options: dict[str, Any], num_rows: int) -> None:
    draft = tiny_model("llama", target.config.vocab_size, 1, num_hidden_layers=1)
    assistant = Assistant(draft, num_candidate_tokens=4)
    stats = compare(target, left_padded(PROMPTS[:num_rows]) | SAMPLED | options, assistant, seed=7)
    assert stats.num_candidate_tokens > 0
