"""Which texts to train on and to measure on: those that the target is to write, or those that it wrote elsewhere.

A text depends on its prompt, temperature and seed alone, and the list of texts on the settings alone. So a killed run
continues with the missing texts, and ends with the same texts as an undisturbed run.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from uag.adapters import from_tokenizer
from uag.bench import Prompt, spread
from uag.errors import OptionError
from uag.loading import encode_prompt
from uag.measure import Text
from uag.ray import row_seed

_HELD_OUT = "held-out-"
"""Prefix of the ids of texts that are not trained on."""

_MOST_HELD_OUT = 32
"""Prompts held out at most: increase for narrower intervals, decrease for faster measurements."""


@dataclass(frozen=True)
class Writing:
    """What the target writes.

    Attributes:
        temperatures: each prompt is continued once at each; 0 is greedy.
        num_texts: maximum number of texts to train on; None for no limit.
        max_new_tokens: maximum number of new tokens of a text.
        batch_size: texts written together: increase for speed, decrease to save memory.
        seed: of all sampling.
        is_chat: make each prompt a user turn of the target's chat template.
    """

    temperatures: tuple[float, ...] = (0.0, 0.7, 1.0)
    num_texts: int | None = None
    max_new_tokens: int = 128
    batch_size: int = 64
    seed: int = 0
    is_chat: bool = False

    def __post_init__(self) -> None:
        if not self.temperatures or min(self.temperatures) < 0:
            raise OptionError(f"temperatures must be one or more numbers of at least 0, not {self.temperatures!r}")
        if min(self.max_new_tokens, self.batch_size, 1 if self.num_texts is None else self.num_texts) < 1:
            raise OptionError("max_new_tokens, batch_size and num_texts must be at least 1")


def hold_out(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Choose the prompts to measure on, evenly spaced: a tenth, at least one and at most 32.

    Raises:
        OptionError: fewer than two prompts.
    """
    if len(prompts) < 2:
        raise OptionError("at least two prompts are needed: one is held out to measure acceptance on")
    return spread(list(prompts), max(1, min(_MOST_HELD_OUT, len(prompts) // 10)))


def is_held_out(text: Text) -> bool:
    """Whether a text is for measuring only."""
    return text.text_id.startswith(_HELD_OUT)


def to_write(
    tokenizer: Any, prompts: Sequence[Prompt], held_out: Sequence[Prompt], writing: Writing, max_tokens: int
) -> list[Text]:
    """List the texts that the target is to write. Held-out ones come first: greedy, and at the last temperature.

    The first text of every prompt comes before any second one, and prompts start with different temperatures, so
    `num_texts` cuts off about as many texts of each temperature.

    Raises:
        OptionError: a prompt has no tokens, or more than `max_tokens`.
    """
    sampled = [temperature for temperature in writing.temperatures if temperature]
    parts = (_HELD_OUT, held_out, (0.0, *sampled[-1:]), None), ("", prompts, writing.temperatures, writing.num_texts)
    texts = []
    for prefix, part, temperatures, num_texts in parts:
        encoded = [tuple(encode_prompt(tokenizer, prompt.content, is_chat=writing.is_chat)) for prompt in part]
        for prompt, ids in zip(part, encoded, strict=True):
            if not 0 < len(ids) <= max_tokens:
                raise OptionError(
                    f"prompt {prompt.prompt_id} has {len(ids)} tokens, it must have 1 to {max_tokens}: shorten it, or "
                    "write fewer tokens (--max-new-tokens)"
                )
        for turn, number in [(turn, n) for turn in range(len(temperatures)) for n in range(len(part))][:num_texts]:
            text_id, temperature = f"{prefix}{number}-{turn}", temperatures[(turn + number) % len(temperatures)]
            texts.append(Text(text_id, encoded[number], temperature, row_seed(writing.seed, text_id)))
    return texts


def written_elsewhere(
    tokenizer: Any, prompts: Sequence[Prompt], held_out: Sequence[Prompt], *, is_chat: bool
) -> list[Text]:
    """Return the texts of a file that contains the target's outputs, the held-out ones first; they count as greedy.

    Raises:
        OptionError: an output is missing.
    """
    adapter = from_tokenizer(tokenizer)
    texts = []
    for prefix, part in ((_HELD_OUT, held_out), ("", prompts)):
        for number, prompt in enumerate(part):
            if prompt.output is None:
                raise OptionError(f"prompt {prompt.prompt_id} has no 'text': expected what the target wrote after it")
            prompt_ids = tuple(encode_prompt(tokenizer, prompt.content, is_chat=is_chat))
            output_ids = tuple(adapter.encode_continuation(prompt.output.encode()))
            texts.append(Text(f"{prefix}{number}", prompt_ids, output_ids=output_ids))
    return texts


def batches(due: Sequence[Text], batch_size: int) -> Iterator[list[Text]]:
    """Cut texts into batches of similar length, longest first: too large a batch fails at once."""
    ordered = sorted(due, key=lambda text: -len(text.prompt_ids))
    for first in range(0, len(ordered), batch_size):
        yield ordered[first : first + batch_size]
