"""Rank drafts for one target by their measured speed."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from uag.adapters import from_tokenizer
from uag.assistant import Assistant
from uag.bench.arms import Arm, assisted, without_draft
from uag.bench.measuring import measure
from uag.bench.prompts import Prompt
from uag.bench.report import ArmSummary, summarize
from uag.errors import UagError
from uag.loading import Pair, demo_folder, load_draft, load_model, load_tokenizer
from uag.options import BenchOptions

_FEWEST_PROMPTS = 4
"""Minimum number of prompts for a verdict. Increase for safer verdicts; decrease for verdicts after fewer prompts."""


@dataclass(frozen=True)
class Ranking:
    """Drafts for one target.

    Attributes:
        target: its name.
        without_draft: figures of uag's passes alone; None if no draft was measured.
        drafts: figures of each draft, fastest first; a draft that was refused has only the reason.
        losses: why a draft's tokenizer cannot represent every text, by name.
    """

    target: str
    without_draft: ArmSummary | None
    drafts: tuple[ArmSummary, ...]
    losses: Mapping[str, str]

    @property
    def verdict(self) -> str:
        """Whether the draft, or the best of several, is worth using.

        It is if it is faster on three of four prompts, than plain decoding and than uag without a draft.
        """
        best, has_several = self.drafts[0], len(self.drafts) > 1
        if best.speed_up_quartiles is None:
            return f"{'none of these can' if has_several else f'{best.arm} cannot'} draft for this target"
        low, high = map(min, best.speed_up_quartiles, best.gain_quartiles or best.speed_up_quartiles)
        if best.num_prompts < _FEWEST_PROMPTS:
            answer = "too few prompts to tell"
        elif low > 1.0:
            answer = "worth using"
        else:
            answer = "not worth using" if high < 1.0 else "inconclusive"
        name = f"best draft: {best.arm}, " if has_several else ""
        speed = f"{best.speed_up:.2f} times the speed of plain decoding"
        gain = "" if best.gain is None else f", {best.gain:.2f} times that of uag without a draft"
        return f"{name}{answer}: {speed}{gain}"

    def to_dict(self) -> dict[str, Any]:
        """Return the ranking as plain data for JSON."""
        return asdict(self) | {"verdict": self.verdict}


def rank(
    target: str | None,
    drafts: Sequence[str] | None,
    prompts: Sequence[Prompt],
    options: BenchOptions,
    *,
    dtype: str | None = None,
    device: str | None = None,
) -> Ranking:
    """Generate with each draft and plainly, in turns, and order the drafts by speed.

    Names, `dtype` and `device` are those of `uag.load_pair`; None for the demo's models.

    Raises:
        UagError: a tokenizer or the target cannot be loaded, raised before anything is measured; or the only draft
            cannot draft for the target.
    """
    drafts = tuple(dict.fromkeys(drafts or [demo_folder("draft")]))
    folder = target or demo_folder("target")
    tokenizers = {name: load_tokenizer(name, role="draft") for name in drafts}
    tokenizer = load_tokenizer(folder, role="target")
    model = load_model(folder, dtype=dtype, device=device, role="target")
    arms = [Arm("plain", model.generate), without_draft(tokenizer, model, options)]
    refused: list[ArmSummary] = []
    losses: dict[str, str | None] = {}
    for name in drafts:
        try:
            draft = load_draft(name, dtype=dtype, device=device)
            assistant = Assistant(draft, tokenizers[name], tokenizer, options=options)
            assistant.check(model)  # refuses a pair that cannot work, before anything is measured
            arms.append(assisted(f"draft {name}", assistant, model))  # a draft can be called "plain", as an arm is
            losses[name] = from_tokenizer(tokenizers[name]).loss
        except (UagError, OSError, ImportError) as error:
            if len(drafts) == 1:
                raise
            refused.append(ArmSummary(name, 0, 0, 0, refusal=" ".join(str(error).split())))
    pair = Pair(model, tokenizer, folder, None, tokenizer, "each draft")
    summaries = summarize(list(measure(pair, prompts, options, arms=arms))) if losses else []
    measured = (replace(of_arm, arm=of_arm.arm.removeprefix("draft ")) for of_arm in summaries[2:])
    ranked = sorted(measured, key=lambda draft: -(draft.speed_up or 0.0))
    return Ranking(
        target or "demo target",
        summaries[1] if summaries else None,
        (*ranked, *refused),
        {name: loss for name, loss in losses.items() if loss},
    )
