"""Rank several drafts for one target by expected speed."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from uag.cli.measured import Measured, MeasureOptions, Measuring
from uag.errors import UagError
from uag.gguf import GgufDraft
from uag.loading import demo_folder, load_draft, load_model, load_tokenizer


@dataclass(frozen=True)
class Ranked:
    """One draft: its name, the size of its weights, and its measurement or the reason why it was refused."""

    name: str
    num_bytes: int | None = None
    measured: Measured | None = None
    refusal: str | None = None

    @property
    def speed_up(self) -> float:
        """The expected speed-up, by which drafts are ranked."""
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
        """Return the ranking as plain data for JSON."""
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

    Names, `dtype` and `device` are those of `uag.load_pair`; `on_step` is called with each step before it begins.

    Raises:
        UagError: unusable prompts, or a tokenizer or target that cannot be loaded; raised before anything is measured.
    """
    folder = target or demo_folder("target")
    tokenizers = {name: load_tokenizer(name, role="draft") for name in drafts}
    tokenizer = load_tokenizer(folder, role="target")
    model = load_model(folder, dtype=dtype, device=device, role="target")
    on_step(f"{target or 'the demo target'} generates the texts to measure on")
    measuring = Measuring(model, tokenizer, options)
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
