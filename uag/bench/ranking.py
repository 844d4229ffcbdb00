"""Rank drafts for one target by their measured speed."""

from collections.abc import Sequence
from dataclasses import replace

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


def rank(
    target: str | None,
    drafts: Sequence[str] | None,
    prompts: Sequence[Prompt],
    options: BenchOptions,
    *,
    dtype: str | None = None,
    device: str | None = None,
) -> tuple[ArmSummary | None, list[ArmSummary]]:
    """Generate with each draft, with uag without a draft, and plainly, in turns.

    Names, `dtype` and `device` are those of `uag.load_pair`; None for the demo's models.

    Returns:
        The figures of uag without a draft, None if no draft could be measured; and those of each draft, fastest first,
        then the drafts that were refused, with the reason.

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
    names, refused = [], []
    for name in drafts:
        try:
            draft = load_draft(name, dtype=dtype, device=device)
            assistant = Assistant(draft, tokenizers[name], tokenizer, options=options)
            assistant.check(model)  # refuses a pair that cannot work, before anything is measured
            arms.append(assisted(f"draft {name}", assistant, model))  # a draft can be called "plain", as an arm is
            names.append(name)
        except (UagError, OSError, ImportError) as error:
            if len(drafts) == 1:
                raise
            refused.append(ArmSummary(name, 0, 0, 0, refusal=" ".join(str(error).split())))
    if not names:
        return None, refused
    pair = Pair(model, tokenizer, folder, None, tokenizer, "each draft")
    _, no_draft, *of_drafts = summarize(list(measure(pair, prompts, options, arms=arms)))
    measured = [
        replace(summary, arm=name, loss=from_tokenizer(tokenizers[name]).loss)
        for summary, name in zip(of_drafts, names, strict=True)
    ]
    return no_draft, [*sorted(measured, key=lambda draft: -(draft.speed_up or 0.0)), *refused]


def advice(drafts: Sequence[ArmSummary]) -> str:
    """Return whether the draft, or the best of several, is worth using; `drafts` are those of `rank`.

    It is if it is faster on three of four prompts, than plain decoding and than uag without a draft.
    """
    best, has_several = drafts[0], len(drafts) > 1
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
    gain = "" if best.gain is None else f", {best.gain:.2f} times that of uag without a draft"
    return f"{name}{answer}: {best.speed_up:.2f} times the speed of plain decoding{gain}"
