"""Measure drafts on prompts: the target writes once, and each draft is run along what it wrote."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from uag.assistant import Assistant
from uag.bench import time_passes, timed
from uag.drafting import Pairing
from uag.errors import OptionError
from uag.hf import models
from uag.hf.weights import num_bytes
from uag.measure import Acceptance, BatchWriter, Forecast, Replay, TargetCosts, Text, forecast, measure_acceptance
from uag.products import FastProducts

PASS_WIDTHS = (1, 2, 4, 8, 17)
"""Positions of the target passes that are timed, eight passes each; costs in between are interpolated."""

_NUM_TRIALS = 2
"""Measurements of each time, of which the least counts: increase on a busy machine, decrease to save time."""

_NUM_OVERHEAD_TEXTS = 2
"""Texts on which the assistant's own work in a round is measured; the least counts."""


@dataclass(frozen=True)
class Measured:
    """What was measured of a draft.

    Attributes:
        acceptance: on greedy texts, and on sampled ones.
        forecast: the expected speed of greedy decoding.
    """

    acceptance: tuple[Acceptance, ...]
    forecast: Forecast

    def to_dict(self) -> dict[str, Any]:
        """Return everything ready for JSON."""
        return asdict(self)

    @property
    def verdict(self) -> str:
        """Whether the draft is worth using on these prompts, in one line."""
        speed_up = self.forecast.speed_up
        if speed_up.low is None or speed_up.high is None:
            answer = "too few prompts to tell"
        elif speed_up.low > 1.0:
            answer = "worth using"
        else:
            answer = "not worth using" if speed_up.high < 1.0 else "may or may not be worth using"
        return f"{answer}: {speed_up:.2f} times the speed of plain decoding expected, greedy, on these prompts"


class Measuring:
    """What a target writes on given prompts, and what its passes cost: what measuring drafts needs of it.

    Args:
        target: a causal model.
        tokenizer: its tokenizer.
        prompts: target ids.
        max_new_tokens: maximum number of new tokens per prompt.
        temperature: of the sampled texts; 0 for none.
    """

    def __init__(
        self, target: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], max_new_tokens: int, temperature: float
    ) -> None:
        if target.config.is_encoder_decoder:
            raise OptionError("drafts of an encoder-decoder cannot be measured this way: use uag bench")
        self.target, self.tokenizer = target, tokenizer
        trials = [
            {
                str(number): _write_plainly(target, str(number), ids, max_new_tokens)
                for number, ids in enumerate(prompts)
            }
            for _ in range(_NUM_TRIALS)
        ]
        plain_s = {text_id: min(trial[text_id][1] for trial in trials) for text_id in trials[0]}
        prefill_s = {text_id: min(trial[text_id][2] for trial in trials) for text_id in trials[0]}
        self.greedy = [text for text, _, _ in trials[0].values() if len(text.output_ids) > 1]
        if not self.greedy:
            raise OptionError("the target ends every text at once: give prompts that it continues")
        due = [Text(str(number), tuple(ids), temperature, number) for number, ids in enumerate(prompts)]
        writer = BatchWriter(target, max_new_tokens)
        self.sampled = [text for task in due for text in writer.write([task])] if temperature else []
        pass_s, overhead_s = self._pass_s(), self._overhead_s(max_new_tokens)
        self.costs = TargetCosts(plain_s, prefill_s, pass_s, overhead_s, num_bytes(target))

    def _pass_s(self) -> dict[int, float]:
        """Return the seconds of a pass by its width: the least of a few medians."""
        running = [token_id for text in self.greedy for token_id in (*text.prompt_ids, *text.output_ids)]
        with FastProducts(self.target).in_place():
            trials = [time_passes(self.target, running, PASS_WIDTHS) for _ in range(_NUM_TRIALS)]
        return {width: min(trial[width] for trial in trials) for width in trials[0]}

    def _overhead_s(self, max_new_tokens: int) -> float:
        """Return the seconds of a round that are neither drafting nor the target's pass."""
        assistant = Assistant.from_prompt_lookup(self.tokenizer)
        overheads = []
        for text in self.greedy[:_NUM_OVERHEAD_TEXTS]:
            ids = torch.tensor([text.prompt_ids], device=self.target.device)
            options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": max_new_tokens, "do_sample": False}
            began = time.perf_counter()
            assistant.generate(self.target, ids, **options)
            seconds, stats = time.perf_counter() - began, assistant.stats
            overheads.append((seconds - stats.target_s - stats.draft_s) / max(stats.num_target_forwards, 1))
        return max(min(overheads), 0.0)

    def measure(self, draft: Any, draft_tokenizer: Any) -> Measured:
        """Measure one draft."""
        penalty = self.target.generation_config.repetition_penalty or 1.0
        options = {"repetition_penalty": penalty, "device": self.target.device}
        size = models.head_size(self.target)
        bare, whole = (
            Pairing(draft, self.tokenizer, draft_tokenizer, prompt_lookup=looks_up).for_all
            for looks_up in (False, True)
        )
        if bare is None or whole is None:
            raise OptionError("a tokenizer is missing")
        replay = Replay(bare, size, **options)
        acceptance = [measure_acceptance(replay, texts) for texts in (self.greedy, self.sampled) if texts]
        return Measured(tuple(acceptance), forecast(Replay(whole, size, **options), self.greedy, self.costs))


@torch.no_grad()
def _write_plainly(target: Any, text_id: str, ids: Sequence[int], max_new_tokens: int) -> tuple[Text, float, float]:
    """Return what plain decoding writes, its seconds, and those of the prompt's pass."""
    row = torch.tensor([list(ids)], device=target.device)
    options = {"attention_mask": torch.ones_like(row), "max_new_tokens": max_new_tokens, "do_sample": False}
    sequences, seconds = timed(target.device, target.generate, inputs=row, **options)
    _, prefill_s = timed(target.device, target, input_ids=row, use_cache=True)
    return Text(text_id, tuple(ids), output_ids=tuple(sequences[0, len(ids) :].tolist())), seconds, prefill_s
