"""The target writes: batches through transformers, each row with a temperature and a generator of its own."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList

from uag.distill.texts import Task, Text
from uag.hf import caches, growing, models
from uag.products import FastProducts
from uag.sampling import Choice, make_choice


class RowChoices(LogitsProcessor):
    """Leaves greedy decoding one token for each row: that which the row's own rule selects.

    A row at temperature 0 selects greedily; any other as plain sampling does after `torch.manual_seed(seed)`, whatever
    the other rows are. It belongs behind all other processors.

    Args:
        due: the rows of the batch.
        vocab_size: entries of the target's head.
        device: where its scores are.
    """

    def __init__(self, due: Sequence[Task], vocab_size: int, device: torch.device) -> None:
        self._temperatures = [task.temperature for task in due]
        self._choices = [sampling_choice(task.seed, vocab_size, device) if task.temperature else None for task in due]
        self._step = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """Return [batch_size, vocab_size]: 0 at the selected token, and minus infinity elsewhere."""
        chosen = scores.argmax(dim=-1)
        for row, (temperature, choice) in enumerate(zip(self._temperatures, self._choices, strict=True)):
            if choice is not None:
                law = scores[row : row + 1].float() / temperature
                chosen[row] = choice.choose(law, [self._step], [0], [None])[0]
                choice.release(self._step)
        self._step += 1
        return torch.full_like(scores, -torch.inf).scatter_(1, chosen[:, None], 0.0)


def sampling_choice(seed: int, vocab_size: int, device: torch.device) -> Choice:
    """Return plain sampling's rule of selection after `torch.manual_seed(seed)`, for one row."""
    generator = torch.Generator(device).manual_seed(seed)
    return make_choice("shared-noise", (1, vocab_size), device, generator)


class BatchWriter:
    """Writes texts with a target that is loaded here.

    Args:
        target: a decoder-only model.
        max_new_tokens: output tokens of a text at most.
    """

    def __init__(self, target: Any, max_new_tokens: int) -> None:
        self.target = target
        self.max_new_tokens = max_new_tokens
        eos = target.generation_config.eos_token_id
        self._eos_ids = set() if eos is None else set(torch.as_tensor(eos).flatten().tolist())
        self._grows = not models.default_cache_refusals(target)

    def write(self, due: Sequence[Task]) -> list[Text]:
        """Write one batch."""
        target, device = self.target, self.target.device
        width = max(len(task.prompt_ids) for task in due)
        padding = [width - len(task.prompt_ids) for task in due]
        rows = [[0] * size + list(task.prompt_ids) for size, task in zip(padding, due, strict=True)]
        mask = [[0] * size + [1] * (width - size) for size in padding]
        options: dict[str, Any] = {}
        if self._grows:  # slots are appended in place: the library's own cache copies all of them at every step
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
        return [
            Text(task.text_id, task.prompt_ids, up_to_end(ids, self._eos_ids), task.temperature, task.seed)
            for task, ids in zip(due, outputs, strict=True)
        ]

    def write_all(self, due: Iterable[Sequence[Task]]) -> Iterator[list[Text]]:
        """Write batch after batch."""
        return map(self.write, due)


def up_to_end(ids: Sequence[int], eos_ids: set[int]) -> tuple[int, ...]:
    """Return ids up to the first end of text, and with it.

    >>> up_to_end([5, 2, 0, 0], {2})
    (5, 2)
    """
    end = next((place + 1 for place, token_id in enumerate(ids) if token_id in eos_ids), len(ids))
    return tuple(ids[:end])
