"""Generate texts with the target, in batches whose rows each have their own temperature and random generator."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList

from uag.hf import models, passes
from uag.products import FastProducts
from uag.sampling import Choice, make_choice


@dataclass(frozen=True)
class Text:
    """A prompt, how the target should continue it, and the output once it exists.

    Attributes:
        text_id: unique among the texts of a run.
        prompt_ids: target ids.
        temperature: 0 is greedy.
        seed: the output equals plain sampling after `torch.manual_seed(seed)`; None if the noise is unknown.
        output_ids: target ids, including the end-of-text token; empty until they are generated.
    """

    text_id: str
    prompt_ids: tuple[int, ...]
    temperature: float = 0.0
    seed: int | None = None
    output_ids: tuple[int, ...] = ()


class RowChoices(LogitsProcessor):
    """Makes greedy decoding select each row's own token: the most probable one, or a sampled one.

    A row with a temperature gets the token of plain sampling after `torch.manual_seed(seed)`, independently of other
    rows. Must be the last processor. `vocab_size` is the size of the target's head.
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
                selected[row] = choice.choose(warped, [(self._step, 0)], [None])[0]
                choice.release(self._step)
        self._step += 1
        return torch.full_like(scores, -torch.inf).scatter_(1, selected[:, None], 0.0)


def sampling_choice(text: Text, vocab_size: int, device: torch.device) -> Choice | None:
    """Return how plain sampling selects the tokens of a text; None if it is greedy, or its noise is unknown."""
    if not text.temperature or text.seed is None:
        return None
    generator = torch.Generator(device).manual_seed(text.seed)
    return make_choice("shared-noise", (1, vocab_size), device, generator)


class BatchWriter:
    """Generates texts of at most `max_new_tokens` tokens with a loaded, decoder-only target."""

    def __init__(self, target: Any, max_new_tokens: int) -> None:
        self.target = target
        self.max_new_tokens = max_new_tokens

    def write(self, due: Sequence[Text]) -> list[Text]:
        """Generate one batch, and return its texts with their outputs."""
        target, device = self.target, self.target.device
        eos_ids = passes.eos_ids(target.generation_config)
        width = max(len(text.prompt_ids) for text in due)
        padding = [width - len(text.prompt_ids) for text in due]
        rows = [[0] * size + list(text.prompt_ids) for size, text in zip(padding, due, strict=True)]
        mask = [[0] * size + [1] * (width - size) for size in padding]
        choices = RowChoices(due, models.head_size(target), device)
        with FastProducts(target).in_place():
            sequences = target.generate(
                input_ids=torch.tensor(rows, device=device),
                attention_mask=torch.tensor(mask, device=device),
                logits_processor=LogitsProcessorList([choices]),
                max_new_tokens=self.max_new_tokens,
                do_sample=False,
                num_beams=1,
                pad_token_id=min(eos_ids, default=0),
            )
        outputs = sequences[:, width:].tolist()
        return [replace(text, output_ids=up_to_end(ids, eos_ids)) for text, ids in zip(due, outputs, strict=True)]


def up_to_end(ids: Sequence[int], eos_ids: Collection[int]) -> tuple[int, ...]:
    """Return the ids up to and including the first end-of-text token.

    >>> up_to_end([5, 2, 0, 0], {2})
    (5, 2)
    """
    end = next((index + 1 for index, token_id in enumerate(ids) if token_id in eos_ids), len(ids))
    return tuple(ids[:end])
