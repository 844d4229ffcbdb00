"""Measure drafts on prompts: the target generates once, and each draft is replayed on its texts."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from uag.assistant import Assistant
from uag.bench import heldout_prompts, read_prompts, spread, time_passes, timed
from uag.drafting import Pairing
from uag.errors import OptionError
from uag.hf import models
from uag.hf.weights import num_bytes
from uag.loading import encode_prompt
from uag.measure import Acceptance, BatchWriter, Forecast, Replay, TargetCosts, Text, forecast, measure_acceptance
from uag.products import FastProducts

PASS_WIDTHS = (1, 2, 4, 8, 17)
"""Widths of the target passes that are timed; add widths for a finer interpolation, at eight passes each."""

_NUM_TRIALS = 2
"""Trials per timing, of which the fastest counts: increase on a busy machine, decrease to save time."""

_NUM_OVERHEAD_TEXTS = 2
"""Texts on which the overhead of a round is measured: increase on a busy machine, decrease to save time."""


@dataclass(frozen=True)
class Measured:
    """Acceptance of a draft on greedy texts and on sampled ones, and the expected speed of greedy decoding."""

    acceptance: tuple[Acceptance, ...]
    forecast: Forecast

    @property
    def verdict(self) -> str:
        """Whether the draft is worth using, in one line."""
        speed_up, num_prompts = self.forecast.speed_up, self.acceptance[0].num_texts
        if speed_up.low is None or speed_up.high is None:
            answer = "too few prompts to tell"
        elif speed_up.low > 1.0:
            answer = "worth using"
        else:
            answer = "not worth using" if speed_up.high < 1.0 else "may or may not be worth using"
        return f"{answer}: expected speed {speed_up:.2f} times that of plain decoding, greedy, on {num_prompts} prompts"


@dataclass(frozen=True)
class MeasureOptions:
    """The prompts to measure on: `num_prompts` evenly spaced ones of a file, by default the bundled Python.

    The target generates `max_new_tokens` for each, greedily and, unless it is 0, at `temperature`.
    """

    prompts: Path | None = None
    num_prompts: int = 8
    max_new_tokens: int = 64
    temperature: float = 1.0

    def prompt_ids(self, target: Any, tokenizer: Any) -> list[tuple[int, ...]]:
        """Return the target ids of the prompts; long ones are truncated on the left."""
        max_prompt_tokens = models.max_positions(target) - self.max_new_tokens
        if max_prompt_tokens < 1:
            raise OptionError(
                f"{self.max_new_tokens} new tokens do not fit into the target's {models.max_positions(target)} "
                "positions: use fewer"
            )
        prompts = spread(heldout_prompts() if self.prompts is None else read_prompts(self.prompts), self.num_prompts)
        return [tuple(encode_prompt(tokenizer, prompt.content)[-max_prompt_tokens:]) for prompt in prompts]


class Measuring:
    """A causal target's texts and the costs of its passes, against which drafts are measured.

    Raises:
        OptionError: an encoder-decoder, or a target that ends every text immediately.
    """

    def __init__(self, target: Any, tokenizer: Any, options: MeasureOptions) -> None:
        if target.config.is_encoder_decoder:
            raise OptionError("drafts of an encoder-decoder cannot be measured this way: use uag bench")
        prompts = dict(enumerate(options.prompt_ids(target, tokenizer)))
        self.target, self.tokenizer = target, tokenizer
        max_new_tokens, temperature = options.max_new_tokens, options.temperature
        trials = [
            {str(number): _write_plainly(target, str(number), ids, max_new_tokens) for number, ids in prompts.items()}
            for _ in range(_NUM_TRIALS)
        ]
        plain_s = {text_id: min(trial[text_id][1] for trial in trials) for text_id in trials[0]}
        prefill_s = {text_id: min(trial[text_id][2] for trial in trials) for text_id in trials[0]}
        self.greedy = [text for text, _, _ in trials[0].values() if len(text.output_ids) > 1]
        if not self.greedy:
            raise OptionError("the target ends every text immediately: use prompts that it continues")
        unwritten = [Text(str(number), ids, temperature, number) for number, ids in prompts.items()]
        writer = BatchWriter(target, max_new_tokens)
        self.sampled = [text for one in unwritten for text in writer.write([one])] if temperature else []
        pass_s, overhead_s = self._pass_s(), self._overhead_s(max_new_tokens)
        self.costs = TargetCosts(plain_s, prefill_s, pass_s, overhead_s, num_bytes(target))

    def _pass_s(self) -> dict[int, float]:
        """Return the seconds of a pass by its width: the smallest median of `_NUM_TRIALS` trials."""
        ids = [token_id for text in self.greedy for token_id in (*text.prompt_ids, *text.output_ids)]
        with FastProducts(self.target).in_place():
            trials = [time_passes(self.target, ids, PASS_WIDTHS) for _ in range(_NUM_TRIALS)]
        return {width: min(trial[width] for trial in trials) for width in trials[0]}

    def _overhead_s(self, max_new_tokens: int) -> float:
        """Return the seconds of a round that are neither drafting nor the target's pass."""
        assistant = Assistant.from_prompt_lookup(self.tokenizer)
        overheads = []
        for text in self.greedy[:_NUM_OVERHEAD_TEXTS]:
            ids = torch.tensor([text.prompt_ids], device=self.target.device)
            options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": max_new_tokens, "do_sample": False}
            start_s = time.perf_counter()
            assistant.generate(self.target, ids, **options)
            seconds, stats = time.perf_counter() - start_s, assistant.stats
            overheads.append((seconds - stats.target_s - stats.draft_s) / max(stats.num_target_forwards, 1))
        return max(min(overheads), 0.0)

    def measure(self, draft: Any, draft_tokenizer: Any) -> Measured:
        """Measure one draft."""
        penalty = self.target.generation_config.repetition_penalty or 1.0
        options = {"repetition_penalty": penalty, "device": self.target.device}
        size = models.head_size(self.target)
        without_lookup, with_lookup = (
            Pairing(draft, self.tokenizer, draft_tokenizer, prompt_lookup=looks_up).for_all
            for looks_up in (False, True)
        )
        if without_lookup is None or with_lookup is None:
            raise OptionError("a tokenizer is missing")
        replay = Replay(without_lookup, size, **options)
        acceptance = [measure_acceptance(replay, texts) for texts in (self.greedy, self.sampled) if texts]
        return Measured(tuple(acceptance), forecast(Replay(with_lookup, size, **options), self.greedy, self.costs))


@torch.no_grad()
def _write_plainly(target: Any, text_id: str, ids: Sequence[int], max_new_tokens: int) -> tuple[Text, float, float]:
    """Decode plainly; return the text, the seconds it took, and the seconds of the prompt's pass."""
    row = torch.tensor([list(ids)], device=target.device)
    options = {"attention_mask": torch.ones_like(row), "max_new_tokens": max_new_tokens, "do_sample": False}
    sequences, seconds = timed(target.device, target.generate, inputs=row, **options)
    _, prefill_s = timed(target.device, target, input_ids=row, use_cache=True)
    return Text(text_id, tuple(ids), output_ids=tuple(sequences[0, len(ids) :].tolist())), seconds, prefill_s
