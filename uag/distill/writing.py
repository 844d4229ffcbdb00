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
from uag.hf import models, passes
from uag.loading import encode_prompt, pad_left
from uag.products import FEW_ROWS, OwnKernels
from uag.sampling import Choice, make_choice, row_seed

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


@dataclass(frozen=True)
class Writing:
    """How the target generates the texts.

    Attributes:
        temperatures: each prompt is continued once at each; 0 is greedy.
        max_new_tokens: maximum number of new tokens of a text.
        batch_size: texts generated together: increase for speed, decrease to save memory.
        seed: of all sampling.
        is_chat: make each prompt a user turn of the target's chat template.
    """

    temperatures: tuple[float, ...] = (0.0, 0.7, 1.0)
    max_new_tokens: int = 128
    batch_size: int = 64
    seed: int = 0
    is_chat: bool = False

    def __post_init__(self) -> None:
        if not self.temperatures or min(self.temperatures) < 0:
            raise OptionError(f"temperatures must be one or more numbers of at least 0, not {self.temperatures!r}")
        if min(self.max_new_tokens, self.batch_size) < 1:
            raise OptionError("max_new_tokens and batch_size must be at least 1")
        if not 0 <= self.seed < 1 << 32:
            raise OptionError(f"the seed is {self.seed}, it must be from 0 to 2**32 - 1")


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
    writing: Writing,
    max_tokens: int,
    *,
    prefix: str = "",
) -> list[Text]:
    """List the texts for the target to generate: each prompt at each temperature; `prefix` begins their ids.

    Raises:
        OptionError: a prompt has no tokens, or more than `max_tokens`.
    """
    texts = []
    for number, prompt in enumerate(prompts):
        ids = tuple(encode_prompt(tokenizer, prompt.content, is_chat=writing.is_chat))
        if not 0 < len(ids) <= max_tokens:
            raise OptionError(
                f"prompt {prompt.prompt_id} has {len(ids)} tokens, it must have 1 to {max_tokens}: shorten it, or "
                "generate fewer tokens (--max-new-tokens)"
            )
        for turn, temperature in enumerate(temperatures):
            text_id = f"{prefix}{number}-{turn}"
            texts.append(Text(text_id, ids, temperature, row_seed(writing.seed, text_id)))
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


def write(target: Any, due: Sequence[Text], max_new_tokens: int) -> list[Text]:
    """Generate one batch with a loaded, decoder-only target, and return its texts with their outputs."""
    device, eos_ids = target.device, passes.eos_ids(target.generation_config)
    inputs = pad_left([text.prompt_ids for text in due], 0, device)
    kernels = OwnKernels(target)
    with kernels.in_place(), kernels.running(FEW_ROWS):
        sequences = target.generate(
            **inputs,
            logits_processor=LogitsProcessorList([RowChoices(due, models.head_size(target), device)]),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            num_beams=1,
            pad_token_id=min(eos_ids, default=0),
        )
    outputs = sequences[:, inputs["input_ids"].shape[1] :]
    written = [tuple(ids[kept].tolist()) for ids, kept in zip(outputs, is_output(outputs, eos_ids), strict=True)]
    return [replace(text, output_ids=ids) for text, ids in zip(due, written, strict=True)]
