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


@dataclass(frozen=True)
class MeasureOptions:
    """What to measure on: `num_prompts` of a file of prompts, evenly spaced; without a file, of the bundled Python.

    The target generates `max_new_tokens` on each, greedily and, unless it is 0, at `temperature`.
    """

    prompts: Path | None = None
    num_prompts: int = 8
    max_new_tokens: int = 64
    temperature: float = 1.0

    def measuring(self, target: Any, tokenizer: Any) -> Measuring:
        """Let a target generate, and time its passes; a prompt that is too long loses its beginning."""
        max_prompt_tokens = models.max_positions(target) - self.max_new_tokens
        if max_prompt_tokens < 1:
            raise OptionError(
                f"{self.max_new_tokens} new tokens do not fit into the target's {models.max_positions(target)} "
                "positions: ask for fewer"
            )
        available = heldout_prompts() if self.prompts is None else read_prompts(self.prompts)
        prompts = [
            tuple(encode_prompt(tokenizer, prompt.content)[-max_prompt_tokens:])
            for prompt in spread(available, self.num_prompts)
        ]
        return Measuring(target, tokenizer, prompts, self.max_new_tokens, self.temperature)


@dataclass(frozen=True)
class Ranked:
    """One draft: its name, the size of its weights, and the measurement, or why it cannot draft for the target."""

    name: str
    num_bytes: int | None = None
    measured: Measured | None = None
    refusal: str | None = None

    @property
    def speed_up(self) -> float:
        """The speed that drafts are ranked by."""
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
        dtype: see `uag.load_pair`.
        device: see `uag.load_pair`.
        on_step: called with the next step.

    Raises:
        UagError: unusable prompts, or a name that cannot be loaded, before anything is measured.
    """
    folder = target or demo_folder("target")
    tokenizers = {name: load_tokenizer(name, role="draft") for name in drafts}
    tokenizer = load_tokenizer(folder, role="target")
    model = load_model(folder, dtype=dtype, device=device, role="target")
    on_step(f"{target or 'the demo target'} generates the texts to measure on")
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
