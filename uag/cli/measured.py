"""Measure drafts on prompts: the target writes once, and each draft is tried along what it wrote."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from uag.assistant import Assistant
from uag.bench import time_passes, timed
from uag.distill import Acceptance, BatchWriter, Estimate, Forecast, Replay, TargetCosts, Task, Text, forecast, measure
from uag.drafting import Pairing
from uag.errors import OptionError
from uag.hf import models
from uag.hf.weights import num_bytes
from uag.products import FastProducts, clock

PASS_WIDTHS = (1, 2, 4, 8, 17)
"""Positions of the target passes that are timed: each takes eight passes, and costs in between lie on a line."""

_NUM_CANDIDATES = 4
_NUM_LOOKS = 2
"""Measurements of a time, of which the least counts: more are steadier on a busy machine, and take longer."""

_NUM_OVERHEAD_TEXTS = 2
"""Texts on which uag's own work in a round is measured, of which the least counts: each takes a generation."""


@dataclass(frozen=True)
class Measured:
    """What a draft does on given prompts.

    Attributes:
        acceptance: greedy, and at a temperature.
        forecast: of the speed of greedy decoding.
    """

    acceptance: tuple[Acceptance, ...]
    forecast: Forecast

    def to_dict(self) -> dict[str, Any]:
        """Return everything ready for JSON."""
        return asdict(self)

    @property
    def verdict(self) -> str:
        """Say in one line whether the pair pays on these prompts."""
        speed_up = self.forecast.speed_up
        low = speed_up.value if speed_up.low is None else speed_up.low
        high = speed_up.value if speed_up.high is None else speed_up.high
        said = "pays" if low > 1.0 else "does not pay" if high < 1.0 else "may pay or not"
        return f"{said} on these prompts: {said_speed(speed_up)} expected, greedy"


def said_speed(speed_up: Estimate, to: str = " to ") -> str:
    """Show a speed-up and its interval."""
    return f"{speed_up.value:.2f}x" + ("" if speed_up.low is None else f" ({speed_up.low:.2f}{to}{speed_up.high:.2f})")


class Measuring:
    """What a target writes for given prompts, and what its passes cost: all that measuring a draft needs of it.

    Args:
        target: a causal model.
        tokenizer: its tokenizer.
        prompts: target ids.
        max_new_tokens: of each prompt at most.
        temperature: of the sampled texts.
    """

    def __init__(
        self, target: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], max_new_tokens: int, temperature: float
    ) -> None:
        if target.config.is_encoder_decoder:
            raise OptionError("only causal targets can be measured here: use uag bench for an encoder-decoder")
        self.target, self.tokenizer = target, tokenizer
        looks = [
            {
                str(number): _write_plainly(target, str(number), ids, max_new_tokens)
                for number, ids in enumerate(prompts)
            }
            for _ in range(_NUM_LOOKS)
        ]
        plain_s = {text_id: min(look[text_id][1] for look in looks) for text_id in looks[0]}
        prefill_s = {text_id: min(look[text_id][2] for look in looks) for text_id in looks[0]}
        self.greedy = [text for text, _, _ in looks[0].values() if len(text.output_ids) > 1]
        if not self.greedy:
            raise OptionError("the target ends every text at once: give prompts that it writes on")
        due = [Task(str(number), tuple(ids), temperature, number) for number, ids in enumerate(prompts)]
        writer = BatchWriter(target, max_new_tokens)
        self.sampled = [text for task in due for text in writer.write([task])] if temperature else []
        pass_s, overhead_s = self._pass_s(), self._overhead_s(max_new_tokens)
        self.costs = TargetCosts(plain_s, prefill_s, pass_s, overhead_s, num_bytes(target))

    def _pass_s(self) -> dict[int, float]:
        """Return the seconds of a pass by its width: the least of some measurements, each a median."""
        running = [token_id for text in self.greedy for token_id in (*text.prompt_ids, *text.output_ids)]
        with FastProducts(self.target).in_place():
            found = [time_passes(self.target, running, PASS_WIDTHS) for _ in range(_NUM_LOOKS)]
        return {width: min(look[width] for look in found) for width in found[0]}

    def _overhead_s(self, max_new_tokens: int) -> float:
        """Return the seconds of a round that are neither drafting nor the target's pass."""
        assistant = Assistant.from_prompt_lookup(self.tokenizer)
        found = []
        for text in self.greedy[:_NUM_OVERHEAD_TEXTS]:
            ids = torch.tensor([text.prompt_ids], device=self.target.device)
            options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": max_new_tokens, "do_sample": False}
            began = clock()  # which leaves out what choosing products takes: it is done once in a process
            assistant.generate(self.target, ids, **options)
            seconds, stats = clock() - began, assistant.stats
            found.append((seconds - stats.target_s - stats.draft_s) / max(stats.num_target_forwards, 1))
        return max(min(found), 0.0)

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
        replay = Replay(bare, size, _NUM_CANDIDATES, **options)
        acceptance = [measure(replay, texts) for texts in (self.greedy, self.sampled) if texts]
        return Measured(tuple(acceptance), forecast(Replay(whole, size, **options), self.greedy, self.costs))


@torch.no_grad()
def _write_plainly(target: Any, text_id: str, ids: Sequence[int], max_new_tokens: int) -> tuple[Text, float, float]:
    """Return what plain decoding writes, its seconds, and those of the prompt's pass."""
    row = torch.tensor([list(ids)], device=target.device)
    options = {"attention_mask": torch.ones_like(row), "max_new_tokens": max_new_tokens, "do_sample": False}
    sequences, seconds = timed(target.device, target.generate, inputs=row, **options)
    _, prefill_s = timed(target.device, target, input_ids=row, use_cache=True)
    return Text(text_id, tuple(ids), tuple(sequences[0, len(ids) :].tolist()), 0.0, None), seconds, prefill_s
