"""The doctor's measurements: of one pair, or of several drafts for one target, fastest first."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from uag.bench import heldout_prompts, read_prompts, spread
from uag.cli.measured import Measured, Measuring
from uag.errors import OptionError, UagError
from uag.gguf import GgufDraft
from uag.hf import models
from uag.loading import demo_folder, encode_prompt, load_draft, load_model, load_tokenizer

_NUM_PROMPT_TOKENS = 64
"""Tokens of a prompt that is cut from running text."""


@dataclass(frozen=True)
class MeasureOptions:
    """What to measure on: a file of prompts, or a text that prompts are cut from, else bundled Python.

    `num_prompts` are used, evenly spaced; the target writes `max_new_tokens` on each, greedily and, unless it is 0, at
    `temperature`.
    """

    prompts: Path | None = None
    text: str | None = None
    num_prompts: int = 8
    max_new_tokens: int = 64
    temperature: float = 1.0

    def measuring(self, target: Any, tokenizer: Any) -> Measuring:
        """Let a target write, and time its passes."""
        room = models.max_positions(target) - self.max_new_tokens
        if room < 1:
            raise OptionError(f"the target has no room for {self.max_new_tokens} new tokens: ask for fewer")
        if self.prompts is None and self.text is not None:
            ids = list(tokenizer(self.text)["input_ids"])
            size = min(_NUM_PROMPT_TOKENS, len(ids) // self.num_prompts)
            if size < 1:
                raise OptionError(
                    f"the text to measure on has only {len(ids)} tokens: give a page of what is to be written"
                )
            starts = [number * (len(ids) - size) // self.num_prompts for number in range(self.num_prompts)]
            prompts = [tuple(ids[start : start + size]) for start in starts]
        else:
            available = heldout_prompts() if self.prompts is None else read_prompts(self.prompts)
            chosen = spread(available, self.num_prompts)
            prompts = [tuple(encode_prompt(tokenizer, prompt.content)[-room:]) for prompt in chosen]
        return Measuring(target, tokenizer, prompts, self.max_new_tokens, self.temperature)


@dataclass(frozen=True)
class Ranked:
    """One draft: its name, the size of its weights, and what was measured, or why it cannot draft for the target."""

    name: str
    num_bytes: int | None = None
    measured: Measured | None = None
    refusal: str | None = None

    @property
    def speed_up(self) -> float:
        """The speed to rank by."""
        return 0.0 if self.measured is None else self.measured.forecast.speed_up.value


@dataclass(frozen=True)
class Ranking:
    """Drafts for one target, fastest first."""

    target: str
    drafts: tuple[Ranked, ...]

    @property
    def verdict(self) -> str:
        """The best draft, and whether it is worth using."""
        best = self.drafts[0]
        if best.measured is None:
            return "none of these can draft for this target"
        return f"best draft: {best.name}, {best.measured.verdict}"

    def to_dict(self) -> dict[str, Any]:
        """Return everything ready for JSON."""
        return asdict(self) | {"verdict": self.verdict}


def rank(
    target: str | None,
    drafts: Sequence[str],
    options: MeasureOptions,
    *,
    dtype: str | None = None,
    device: str | None = None,
    on_step: Callable[[str], object] = lambda _: None,
) -> Ranking:
    """Measure drafts for a target on the same texts, and order them by expected speed.

    Args:
        target: hub name or folder; None for the demo's.
        drafts: hub names, folders or GGUF files.
        options: what to measure on.
        dtype: see `uag.loading.load_pair`.
        device: see `uag.loading.load_pair`.
        on_step: called with what is done next.

    Raises:
        UagError: unusable prompts, or a draft whose tokenizer cannot be read.
        OSError: a target or draft does not exist; found out before anything is measured.
    """
    folder = target or demo_folder("target")
    tokenizers = {name: load_tokenizer(name) for name in drafts}
    model, tokenizer = load_model(folder, dtype=dtype, device=device), load_tokenizer(folder)
    on_step(f"{target or 'the demo target'} writes the texts to measure on")
    measuring = options.measuring(model, tokenizer)
    ranked = []
    for name in drafts:
        on_step(f"measuring {name}")
        try:
            draft = load_draft(name, dtype=dtype, device=device)
            ranked.append(Ranked(name, _num_bytes(draft), measuring.measure(draft, tokenizers[name])))
        except (UagError, OSError, ImportError) as error:
            ranked.append(Ranked(name, refusal=" ".join(str(error).split())))
    return Ranking(target or "demo target", tuple(sorted(ranked, key=lambda draft: -draft.speed_up)))


def _num_bytes(draft: Any) -> int:
    if isinstance(draft, GgufDraft):
        return draft.file.path.stat().st_size
    return sum(tensor.nbytes for tensor in (*draft.parameters(), *draft.buffers()))
