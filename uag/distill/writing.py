"""The target's texts, to train and to measure on: which ones, and how the target generates them in batches.

A text depends only on its prompt, temperature and seed, and the list of texts only on the settings. Each row of a batch
has its own temperature and random generator.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList

from uag.adapters import from_tokenizer
from uag.bench import Prompt, is_output, spread
from uag.errors import OptionError
from uag.hf import passes
from uag.loading import encode_prompt, pad_left
from uag.sampling import row_seed

_MOST_HELD_OUT = 32
"""Maximum number of prompts held out: increase for more precise figures, decrease for faster evaluations."""


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


def hold_out(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Choose the prompts to measure on, evenly spaced: a tenth, at least one and at most 32.

    Raises:
        OptionError: fewer than two prompts.
    """
    if len(prompts) < 2:
        raise OptionError("at least two prompts are needed: one is held out for the evaluation")
    return spread(list(prompts), max(1, min(_MOST_HELD_OUT, len(prompts) // 10)))


def to_write(
    tokenizer: Any,
    prompts: Sequence[Prompt],
    temperatures: Sequence[float],
    max_tokens: int,
    *,
    seed: int = 0,
    is_chat: bool = False,
    prefix: str = "",
) -> list[Text]:
    """List the texts for the target to generate: each prompt at each temperature; `prefix` begins their ids.

    Raises:
        OptionError: a prompt has no tokens, or more than `max_tokens`.
    """
    texts = []
    for number, prompt in enumerate(prompts):
        ids = tuple(encode_prompt(tokenizer, prompt.content, is_chat=is_chat))
        if not 0 < len(ids) <= max_tokens:
            raise OptionError(
                f"prompt {prompt.prompt_id} has {len(ids)} tokens, it must have 1 to {max_tokens}: shorten it, or "
                "generate fewer tokens (--max-new-tokens)"
            )
        for turn, temperature in enumerate(temperatures):
            text_id = f"{prefix}{number}-{turn}"
            texts.append(Text(text_id, ids, temperature, row_seed(seed, text_id)))
    return texts


def written_elsewhere(tokenizer: Any, prompts: Sequence[Prompt], *, is_chat: bool) -> list[Text]:
    """Return the texts of a file that contains the target's outputs; they count as greedy.

    Raises:
        OptionError: an output is missing.
    """
    adapter = from_tokenizer(tokenizer)
    texts = []
    for number, prompt in enumerate(prompts):
        if prompt.output is None:
            raise OptionError(f"prompt {prompt.prompt_id} has no 'text': expected the target's output")
        prompt_ids = tuple(encode_prompt(tokenizer, prompt.content, is_chat=is_chat))
        output_ids = tuple(adapter.encode_continuation(prompt.output.encode()))
        texts.append(Text(str(number), prompt_ids, output_ids=output_ids))
    return texts


class RowChoices(LogitsProcessor):
    """Makes greedy decoding select each row's own token: the most probable one, or a sampled one.

    A row with a temperature gets the token of plain sampling after `torch.manual_seed(seed)`, independently of other
    rows. Must be the last processor.
    """

    def __init__(self, texts: Sequence[Text], device: torch.device) -> None:
        self._sampled = [
            (row, text.temperature, torch.Generator(device).manual_seed(text.seed))
            for row, text in enumerate(texts)
            if text.temperature and text.seed is not None
        ]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """Return [batch_size, vocab_size]: 0 at the selected token, and minus infinity elsewhere."""
        selected = scores.argmax(dim=-1, keepdim=True)
        for row, temperature, generator in self._sampled:
            probs = (scores[row].float() / temperature).softmax(dim=-1)
            selected[row] = torch.multinomial(probs, 1, generator=generator)
        return torch.full_like(scores, -torch.inf).scatter_(1, selected, 0.0)


def write(target: Any, due: Sequence[Text], max_new_tokens: int) -> list[Text]:
    """Generate one batch with a loaded, decoder-only target, and return its texts with their outputs."""
    eos_ids = passes.eos_ids(target.generation_config)
    inputs = pad_left([text.prompt_ids for text in due], 0, target.device)
    sequences = target.generate(
        **inputs,
        logits_processor=LogitsProcessorList([RowChoices(due, target.device)]),
        max_new_tokens=max_new_tokens,
        do_sample=False,
        num_beams=1,
        pad_token_id=min(eos_ids, default=0),
    )
    outputs = sequences[:, inputs["input_ids"].shape[1] :]
    kept = is_output(outputs, eos_ids)
    return [replace(text, output_ids=tuple(outputs[row][kept[row]].tolist())) for row, text in enumerate(due)]
