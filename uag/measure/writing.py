"""The target writes: batches through transformers, each row with its own temperature and random generator."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from uag.hf import models
from uag.hf.cache import caches, growing
from uag.measure.texts import Text
from uag.products import FastProducts
from uag.sampling import Choice, make_choice


class RowChoices(LogitsProcessor):
    """Makes greedy decoding select each row's own token: the most probable one, or a sampled one.

    A row with a temperature gets the token of plain sampling after `torch.manual_seed(seed)`, whatever the other rows
    are. Must be the last processor.

    Args:
        texts: the rows of the batch.
        vocab_size: entries of the target's head.
        device: where its scores are.
    """

    def __init__(self, texts: Sequence[Text], vocab_size: int, device: torch.device) -> None:
        self._temperatures = [text.temperature for text in texts]
        self._choices = [sampling_choice(text, vocab_size, device) for text in texts]
        self._step = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """Return [batch_size, vocab_size]: 0 at the selected token, and minus infinity elsewhere."""
        selected = scores.argmax(dim=-1)
        for row, (temperature, choice) in enumerate(zip(self._temperatures, self._choices, strict=True)):
            if choice is not None:
                warped = scores[row : row + 1].float() / temperature
                selected[row] = choice.choose(warped, [self._step], [0], [None])[0]
                choice.release(self._step)
        self._step += 1
        return torch.full_like(scores, -torch.inf).scatter_(1, selected[:, None], 0.0)


def sampling_choice(text: Text, vocab_size: int, device: torch.device) -> Choice | None:
    """Return how plain sampling selects the tokens of a text; None if it is greedy, or its noise is not known."""
    if not text.temperature or text.seed is None:
        return None
    generator = torch.Generator(device).manual_seed(text.seed)
    return make_choice("shared-noise", (1, vocab_size), device, generator)


class BatchWriter:
    """Writes texts with a loaded target.

    Args:
        target: a decoder-only model.
        max_new_tokens: maximum number of output tokens of a text.
    """

    def __init__(self, target: Any, max_new_tokens: int) -> None:
        self.target = target
        self.max_new_tokens = max_new_tokens
        eos = target.generation_config.eos_token_id
        self._eos_ids = set() if eos is None else set(torch.as_tensor(eos).flatten().tolist())
        self._can_buffer = not models.default_cache_refusals(target)

    def write(self, due: Sequence[Text]) -> list[Text]:
        """Return the texts of one batch with their outputs."""
        target, device = self.target, self.target.device
        width = max(len(text.prompt_ids) for text in due)
        padding = [width - len(text.prompt_ids) for text in due]
        rows = [[0] * size + list(text.prompt_ids) for size, text in zip(padding, due, strict=True)]
        mask = [[0] * size + [1] * (width - size) for size in padding]
        options: dict[str, Any] = {}
        if self._can_buffer:  # appends in place, where the default cache copies everything at every step
            options["past_key_values"] = caches.default_cache(target)
            growing.begin_buffering(options["past_key_values"])
        choices = RowChoices(due, models.head_size(target), device)
        with FastProducts(target).in_place():
            sequences = target.generate(
                input_ids=torch.tensor(rows, device=device),
                attention_mask=torch.tensor(mask, device=device),
                logits_processor=LogitsProcessorList([choices]),
                max_new_tokens=self.max_new_tokens,
                do_sample=False,
                num_beams=1,
                pad_token_id=min(self._eos_ids, default=0),
                **options,
            )
        outputs = sequences[:, width:].tolist()
        return [replace(text, output_ids=up_to_end(ids, self._eos_ids)) for text, ids in zip(due, outputs, strict=True)]


def up_to_end(ids: Sequence[int], eos_ids: set[int]) -> tuple[int, ...]:
    """Return the ids up to and including the first end-of-text token.

    >>> up_to_end([5, 2, 0, 0], {2})
    (5, 2)
    """
    end = next((place + 1 for place, token_id in enumerate(ids) if token_id in eos_ids), len(ids))
    return tuple(ids[:end])


def repetition_penalty(target: str) -> float:
    """Return the repetition penalty in a target's generation config, which greedy decoding applies too; 1.0 if none."""
    try:
        return float(GenerationConfig.from_pretrained(target).repetition_penalty or 1.0)
    except OSError:  # the model has no generation config
        return 1.0
