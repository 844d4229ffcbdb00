"""Plain decoding: transformers' own loop, with the statistics of an assisted call."""

import copy
import time
from collections.abc import Iterable
from typing import Any

import torch
from transformers import LogitsProcessorList, StoppingCriteriaList

from uag.decoding.call import Call
from uag.errors import UnsupportedError
from uag.hf import passes
from uag.kernels import FEW_ROWS, OwnKernels
from uag.stats import TARGET, Stats


class _Drawing(LogitsProcessorList):
    """Processors that also draw each step's tokens from the caller's generator, not from the default one.

    With `do_sample=False`, transformers' loop selects the highest score, so all others become minus infinity. `scores`
    are those before, if they are recorded.
    """

    def __init__(self, call: Call, generator: torch.Generator) -> None:
        super().__init__(call.logits_processor)
        self.generator = generator
        config = call.generation_config
        self.scores: list[torch.Tensor] | None = [] if config.return_dict_in_generate and config.output_scores else None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        scores = super().__call__(input_ids, scores, **kwargs)
        if self.scores is not None:
            self.scores.append(scores)
        drawn = torch.multinomial(torch.softmax(scores, dim=-1), num_samples=1, generator=self.generator)
        return torch.full_like(scores, -torch.inf).scatter_(-1, drawn, 0.0)


class _RecordingCriteria(StoppingCriteriaList):
    """Stopping criteria that record the latest ids, each step's result, and the time of the first step."""

    def __init__(self, criteria: Iterable[Any], drawing: _Drawing | None) -> None:
        super().__init__(criteria)
        self.drawing = drawing
        self.ids: torch.Tensor | None = None
        self.results: list[torch.Tensor] = []
        self.first_time = 0.0

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> Any:
        if self.drawing is not None and self.drawing.scores is not None:
            scores = tuple(self.drawing.scores)
        done = super().__call__(input_ids, scores, **kwargs)
        self.ids = input_ids
        self.results.append(done)
        self.first_time = self.first_time or time.perf_counter()
        return done


def decode_plainly(call: Call, stats: Stats, kernels: OwnKernels) -> Any:
    """Run one call in transformers' own loop, or refuse a generator that the target's own loop ignores."""
    start_time = time.perf_counter()
    config, processors, drawing = call.generation_config, call.logits_processor, None
    if call.options.generator is not None and config.do_sample:
        if not passes.has_usual_loop(call.model):
            raise UnsupportedError(
                f"{type(call.model).__name__} has its own sampling loop, which draws from PyTorch's default generator. "
                "Create the assistant without generator=, and call torch.manual_seed before the call."
            )
        config = copy.copy(config)
        config.do_sample = False
        processors = drawing = _Drawing(call, call.options.generator)
    criteria = _RecordingCriteria(call.stopping_criteria, drawing)
    try:
        most_rows = min(FEW_ROWS, call.input_ids.shape[0])  # the prompt is PyTorch's, as in assisted calls
        with kernels.in_place(), kernels.running(most_rows):
            output = passes.sample_plainly(
                call.model,
                call.input_ids,
                synced_gpus=call.is_synced,
                logits_processor=processors,
                stopping_criteria=criteria,
                generation_config=config,
                streamer=call.streamer,
                **call.model_kwargs,
            )
    finally:
        stats.total_s = time.perf_counter() - start_time
        _count(call, stats, criteria, start_time)
    if drawing is not None and drawing.scores is not None:
        output["scores"] = tuple(drawing.scores[: len(output.scores)])
    return output


def _count(call: Call, stats: Stats, criteria: _RecordingCriteria, start_time: float) -> None:
    num_steps = len(criteria.results)
    stats.start(call.input_ids.shape[0])
    stats.num_target_forwards = num_steps
    if criteria.ids is None or criteria.ids.dim() != 2:  # audio models write several ids per step
        return
    stats.first_token_s = criteria.first_time - start_time
    for index, results in enumerate(torch.stack(criteria.results).T.tolist()):
        end = results.index(True) + 1 if True in results else num_steps
        stats.count_row(index, [TARGET] * end)
