"""`uag doctor`: a report on one pair, or a ranking of several drafts for one target."""

from pathlib import Path
from typing import Annotated

import typer

from uag.cli.common import AsJson, Device, Dtype, console, error_console, print_json, quieten


def doctor(
    target: Annotated[str | None, typer.Argument(help="Hub name or folder of the target; default: the demo's.")] = None,
    drafts: Annotated[
        list[str] | None,
        typer.Argument(
            help="Hub names, folders or GGUF files; several drafts are ranked by expected speed; default: the demo's."
        ),
    ] = None,
    text: Annotated[Path | None, typer.Option(help="File with text like that the target is to write.")] = None,
    is_measured: Annotated[
        bool,
        typer.Option(
            "--measure/--no-measure", help="Let the target write, and measure acceptance and speed; takes longest."
        ),
    ] = True,
    prompts: Annotated[
        Path | None, typer.Option(help="Prompts to measure on, as for uag distill; default: bundled Python.")
    ] = None,
    num_prompts: Annotated[int, typer.Option(min=1, help="Number of prompts, evenly spaced over the file.")] = 8,
    max_new_tokens: Annotated[int, typer.Option(min=8, help="Tokens that the target writes on each prompt.")] = 64,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="Also measure acceptance on sampled texts; 0: greedy texts only.")
    ] = 1.0,
    dtype: Dtype = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Predict whether a draft will speed up a target, or which of several drafts is best."""
    quieten()
    from uag.cli.doctor import diagnose
    from uag.cli.doctor_tables import render_measured, render_ranking, render_report
    from uag.cli.ranking import MeasureOptions, rank
    from uag.loading import load_pair

    def report_step(step: str) -> None:
        if not as_json:
            error_console.print(step, style="dim", highlight=False, soft_wrap=True)

    running_text = None if text is None else text.read_text(encoding="utf-8")
    options = MeasureOptions(prompts, running_text, num_prompts, max_new_tokens, temperature)
    if len(drafts or []) > 1:
        ranking = rank(target, drafts or [], options, dtype=dtype, device=device, on_step=report_step)
        if as_json:
            print_json(ranking.to_dict())
        else:
            console.print(render_ranking(ranking))
        return
    pair = load_pair(target, drafts[0] if drafts else None, dtype=dtype, device=device)
    measured, verdict = None, "speed not measured (--no-measure)"
    if pair.is_encoder_decoder:
        verdict = "speed not measured: use uag bench for encoder-decoder targets"
    elif is_measured:
        report_step(f"measuring on texts that {pair.target_name} writes")
        measuring = options.measuring(pair.target, pair.target_tokenizer)
        measured = measuring.measure(pair.draft, pair.draft_tokenizer)
        verdict = measured.verdict
    report = diagnose(pair, running_text)
    if as_json:
        values = {} if measured is None else {"measured": measured.to_dict()}
        print_json({"verdict": verdict} | report.to_dict() | values)
        return
    console.print(verdict, style="bold", highlight=False, soft_wrap=True)
    if measured is not None:
        console.print(render_measured(measured))
    console.print(render_report(report))
