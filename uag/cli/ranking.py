"""Rank drafts for one target by expected speed."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from uag.adapters import from_tokenizer
from uag.cli.measured import Measured, MeasureOptions, Measuring
from uag.errors import UagError
from uag.gguf import GgufDraft
from uag.loading import demo_folder, load_draft, load_model, load_tokenizer
from uag.projection import TokenizerPair


@dataclass(frozen=True)
class Ranked:
    """One draft for a target.

    Attributes:
        name: as passed by the user.
        num_bytes: size of its weights.
        shared_vocabulary: share of its tokens whose bytes are a token of the target, too.
        loss: why its tokenizer cannot represent every text; None if it can.
        measured: its measurement; None if it was refused.
        refusal: why it was refused.
    """

    name: str
    num_bytes: int | None = None
    shared_vocabulary: float = 0.0
    loss: str | None = None
    measured: Measured | None = None
    refusal: str | None = None

    @property
    def speed_up(self) -> float:
        """The expected speed-up, by which drafts are ranked."""
        return 0.0 if self.measured is None else self.measured.forecast.speed_up.value


@dataclass(frozen=True)
class Ranking:
    """Drafts for one target, fastest first, and the seconds of the target's passes by their number of positions."""

    target: str
    drafts: tuple[Ranked, ...]
    target_pass_s: dict[int, float]

    @property
    def verdict(self) -> str:
        """Whether the draft, or the best of several, is worth using."""
        best = self.drafts[0]
        if best.measured is None:
            return "none of these can draft for this target"
        return best.measured.verdict if len(self.drafts) == 1 else f"best draft: {best.name}, {best.measured.verdict}"

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
        UagError: unusable prompts, or a tokenizer or target that cannot be loaded, raised before anything is measured;
            or the only draft cannot draft for the target.
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
            ranked.append(_rank_one(measuring, name, load_draft(name, dtype=dtype, device=device), tokenizers[name]))
        except (UagError, OSError, ImportError) as error:
            if len(drafts) == 1:
                raise
            ranked.append(Ranked(name, refusal=" ".join(str(error).split())))
    drafts_by_speed = sorted(ranked, key=lambda draft: -draft.speed_up)
    return Ranking(target or "demo target", tuple(drafts_by_speed), dict(measuring.costs.pass_s))


def _rank_one(measuring: Measuring, name: str, draft: Any, tokenizer: Any) -> Ranked:
    measured = measuring.measure(draft, tokenizer)
    adapter = from_tokenizer(tokenizer)
    maps = TokenizerPair.of(from_tokenizer(measuring.tokenizer), adapter).maps
    shared_vocabulary = maps.num_one_to_one / max(1, maps.num_draft_texts)
    return Ranked(name, _num_bytes(draft), shared_vocabulary, adapter.loss, measured)


def _num_bytes(draft: Any) -> int:
    if isinstance(draft, GgufDraft):
        return draft.file.path.stat().st_size
    return sum(tensor.nbytes for tensor in (*draft.parameters(), *draft.buffers()))
