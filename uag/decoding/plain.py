"""Calls in which nothing can be drafted: transformers' own loop runs them."""

import time
from collections.abc import Iterable
from typing import Any

import torch
from transformers import StoppingCriteriaList

from uag.decoding.call import Call
from uag.hf import passes
from uag.products import FastProducts
from uag.sampling import as_default
from uag.stats import TARGET, Stats


class _Watched(StoppingCriteriaList):
    """The criteria of a call, which record the ids they saw last, and their answer and the time of each step."""

    def __init__(self, criteria: Iterable[Any]) -> None:
        super().__init__(criteria)
        self.ids: torch.Tensor | None = None
        self.answers: list[torch.Tensor] = []
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        done = super().__call__(input_ids, *args, **kwargs)
        self.ids = input_ids
        self.answers.append(done)
        self.times.append(time.perf_counter())
        return done


def decode_plainly(call: Call, stats: Stats) -> Any:
    """Run one call in transformers' own loop; with `synced_gpus` a rank that is done goes on until all are."""
    began = time.perf_counter()
    watched = _Watched(call.stopping_criteria)
    try:
        with as_default(call.generator, call.input_ids.device), FastProducts(call.model).in_place():
            return passes.sample_plainly(
                call.model,
                call.input_ids,
                synced_gpus=call.is_synced,
                logits_processor=call.logits_processor,
                stopping_criteria=watched,
                generation_config=call.generation_config,
                streamer=call.streamer,
                **call.model_kwargs,
            )
    finally:
        stats.total_s = time.perf_counter() - began
        _count(call, stats, watched, began)


def _count(call: Call, stats: Stats, watched: _Watched, began: float) -> None:
    num_steps = len(watched.answers)
    stats.start(call.input_ids.shape[0])
    stats.num_target_forwards = num_steps
    if watched.ids is None or watched.ids.dim() != 2:  # models of sound write several ids a step
        return
    stats.first_token_s = watched.times[0] - began
    written = watched.ids[:, call.input_ids.shape[1] :].tolist()
    for index, (ids, answers) in enumerate(zip(written, torch.stack(watched.answers).T.tolist(), strict=True)):
        end = answers.index(True) + 1 if True in answers else num_steps
        stats.count_row(index, ids[:end], [TARGET] * end, call.token_bytes, watched.times[end - 1] - began)
