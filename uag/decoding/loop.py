"""The decoding loop: draft, verify, accept.

One rule serves greedy decoding and sampling: a candidate is accepted while it is the token that the target itself
selects (see `uag.selection`). So the output is what plain decoding writes, whatever was drafted.

Rows advance *freely* where everything that looks at them is known to look at one row only; otherwise *in step*, where
every processor, criterion and streamer is called once per output step with exactly what plain decoding would show it.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from uag.decoding.apart import FreeRounds
from uag.decoding.call import Request
from uag.decoding.in_step import StepRounds
from uag.decoding.stopping import Stopping
from uag.drafting.drafter import Drafter
from uag.hf.caches import cache_names, check_cache
from uag.hf.passes import sample_plainly
from uag.lookahead.lookahead import Lookahead
from uag.sampling.noise import as_default
from uag.stats import Stats


def decode(request: Request, drafter: Drafter | None, lookahead: Lookahead, stats: Stats) -> Any:
    """Run one call.

    Args:
        request: what transformers prepared.
        drafter: source of candidates; None decodes plainly.
        lookahead: how far to draft.
        stats: filled in.

    Returns:
        What plain `generate` returns: ids [batch_size, length], or a `ModelOutput` with `return_dict_in_generate`.

    Raises:
        UnsupportedError: the target's cache cannot be rewound.
        OptionError: the generator is on another device.
    """
    if drafter is not None:
        kwargs = request.model_kwargs
        target_cache = next((kwargs[name] for name in cache_names() if kwargs.get(name) is not None), None)
        check_cache(target_cache if kwargs.get("use_cache", True) else None)
    began = time.perf_counter()
    loop = _Loop(request, drafter, lookahead, stats)
    try:
        return loop.run()
    finally:
        try:
            if request.streamer is not None:
                request.streamer.end()
        finally:
            if drafter is not None:
                drafter.release()
                for reason in drafter.fall_backs:
                    stats.fall_back(reason)
            loop.close()
            stats.total_s = time.perf_counter() - began


class _Loop(FreeRounds, StepRounds):
    """Both ways of advancing rows over one state."""

    def run(self) -> Any:
        """Run rounds until every row has ended; returns what plain decoding returns."""
        self._start_drafter()
        with self.request.model._optimize_model_for_decode():
            logits, proposals = self._first_pass()
            if self._goes_in_step():
                self._run_in_step(logits, proposals)
            elif self.batch_size == 1:
                self._run_alone(logits, proposals)
            else:
                self._run_ragged(logits, proposals)
        return self._result()


def decode_plainly(request: Request, stats: Stats, is_synced: bool) -> Any:
    """Run one call in transformers' own loop.

    Args:
        request: as in `decode`.
        stats: filled in.
        is_synced: keep every rank in step (`synced_gpus`).
    """
    began = time.perf_counter()
    with as_default(request.generator, request.input_ids.device):
        output = sample_plainly(
            request.model,
            request.input_ids,
            synced_gpus=is_synced,
            logits_processor=request.logits_processor,
            stopping_criteria=request.stopping_criteria,
            generation_config=request.generation_config,
            streamer=request.streamer,
            **request.model_kwargs,
        )
    ids = output if isinstance(output, torch.Tensor) else output.sequences
    rows = ids[:, request.input_ids.shape[1] :].tolist()
    eos_ids = Stopping(request.stopping_criteria).eos_ids
    ends = [next((place + 1 for place, i in enumerate(row) if i in eos_ids), len(row)) for row in rows]
    stats.start(len(rows))
    stats.num_target_forwards = len(rows[0])
    stats.total_s = time.perf_counter() - began
    for index, (row, end) in enumerate(zip(rows, ends, strict=True)):
        stats.count_row(index, row[:end], [False] * end, request.token_bytes, stats.total_s)
    return output
