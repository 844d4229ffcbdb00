"""`uag doctor`: a report on one pair, or a ranking of several drafts for one target."""

from pathlib import Path
from typing import Annotated

import typer

from uag.cli.common import AsJson, Device, Dtype, begin, console, print_json, report


def doctor(
    target: Annotated[str | None, typer.Argument(help="Hub name or folder of the target; default: the demo's.")] = None,
    drafts: Annotated[
        list[str] | None,
        typer.Argument(help="Hub names, folders or GGUF files; several are ranked by speed; default: the demo's."),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(exists=True, help="Prompts to measure on, as for uag distill; default: bundled Python."),
    ] = None,
    num_prompts: Annotated[int, typer.Option(min=1, help="Number of prompts, evenly spaced over the file.")] = 8,
    max_new_tokens: Annotated[int, typer.Option(min=8, help="Tokens that the target generates per prompt.")] = 64,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="Also measure acceptance on sampled texts; 0: greedy texts only.")
    ] = 1.0,
    dtype: Dtype = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Predict whether a draft will speed up a target.

    The target generates, and each draft is measured on its texts. Several drafts are ranked by expected speed.
    """
    drafts = drafts or []
    begin(target, *drafts)
    from uag.cli.doctor import diagnose
    from uag.cli.doctor_tables import show_measured, show_ranking, show_report
    from uag.cli.measured import MeasureOptions, Measuring
    from uag.cli.ranking import rank
    from uag.loading import load_pair

    options = MeasureOptions(prompts, num_prompts, max_new_tokens, temperature)
    if len(drafts) > 1:
        ranking = rank(target, drafts, options, dtype=dtype, device=device, on_step=report)
        if as_json:
            print_json(ranking.to_dict())
        else:
            show_ranking(console, ranking)
        return
    pair = load_pair(target, drafts[0] if drafts else None, dtype=dtype, device=device)
    measured, verdict = None, "speed not measured: use uag bench for encoder-decoder targets"
    if not pair.is_encoder_decoder:
        report(f"measuring on texts that {pair.target_name} generates")
        measuring = Measuring(pair.target, pair.target_tokenizer, options)
        measured = measuring.measure(pair.draft, pair.draft_tokenizer)
        verdict = measured.verdict
    pair_report = diagnose(pair)
    if as_json:
        values = {} if measured is None else {"measured": measured.to_dict()}
        print_json({"verdict": verdict} | pair_report.to_dict() | values)
        return
    console.print(verdict, style="bold", highlight=False, soft_wrap=True)
    if measured is not None:
        show_measured(console, measured)
    show_report(console, pair_report)
