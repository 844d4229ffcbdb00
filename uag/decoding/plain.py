"""Plain decoding: transformers' own loop, with the statistics of an assisted call."""

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


class _RecordingCriteria(StoppingCriteriaList):
    """Stopping criteria that record the latest ids, each step's result, and the time of the first step."""

    def __init__(self, criteria: Iterable[Any]) -> None:
        super().__init__(criteria)
        self.ids: torch.Tensor | None = None
        self.results: list[torch.Tensor] = []
        self.first_time = 0.0

    def __call__(self, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        done = super().__call__(input_ids, *args, **kwargs)
        self.ids = input_ids
        self.results.append(done)
        self.first_time = self.first_time or time.perf_counter()
        return done


def decode_plainly(call: Call, stats: Stats) -> Any:
    """Run one call in transformers' own loop; with `synced_gpus`, a finished rank continues until all are finished."""
    start_time = time.perf_counter()
    criteria = _RecordingCriteria(call.stopping_criteria)
    try:
        products = FastProducts(None if call.is_compiled else call.model)
        with as_default(call.generator, call.input_ids.device), products.in_place():
            return passes.sample_plainly(
                call.model,
                call.input_ids,
                synced_gpus=call.is_synced,
                logits_processor=call.logits_processor,
                stopping_criteria=criteria,
                generation_config=call.generation_config,
                streamer=call.streamer,
                **call.model_kwargs,
            )
    finally:
        stats.total_s = time.perf_counter() - start_time
        _count(call, stats, criteria, start_time)


def _count(call: Call, stats: Stats, criteria: _RecordingCriteria, start_time: float) -> None:
    num_steps = len(criteria.results)
    stats.start(call.input_ids.shape[0])
    stats.num_target_forwards = num_steps
    if criteria.ids is None or criteria.ids.dim() != 2:  # audio models write several ids per step
        return
    stats.first_token_s = criteria.first_time - start_time
    written = criteria.ids[:, call.input_ids.shape[1] :].tolist()
    for index, (ids, results) in enumerate(zip(written, torch.stack(criteria.results).T.tolist(), strict=True)):
        end = results.index(True) + 1 if True in results else num_steps
        stats.count_row(index, ids[:end], [TARGET] * end, call.token_bytes)
