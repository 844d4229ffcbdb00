"""`uag doctor`: a report on one pair, or the order of several drafts for one target."""

from pathlib import Path
from typing import Annotated

import typer

from uag.cli.common import AsJson, Device, Dtype, console, error_console, print_json, quieten


def doctor(
    target: Annotated[str | None, typer.Argument(help="Hub name or folder of the target; default: the demo's.")] = None,
    drafts: Annotated[
        list[str] | None,
        typer.Argument(
            help="Hub names, folders or GGUF files: of one draft the pair is examined, several are ranked by the speed "
            "that they promise; default: the demo's."
        ),
    ] = None,
    text: Annotated[Path | None, typer.Option(help="File with the kind of text the pair is to write.")] = None,
    is_measured: Annotated[
        bool, typer.Option("--measure", help="Let the target write, and measure acceptance and speed on that.")
    ] = False,
    prompts: Annotated[
        Path | None, typer.Option(help="Prompts to measure on, in a form of uag distill; default: bundled Python.")
    ] = None,
    num_prompts: Annotated[int, typer.Option(min=2, help="Prompts to measure on, evenly spaced.")] = 8,
    max_new_tokens: Annotated[int, typer.Option(min=8, help="Tokens that the target writes on each prompt.")] = 64,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="Of the sampled texts; 0 measures greedy ones only.")
    ] = 1.0,
    dtype: Dtype = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Tell whether a pair can pay before anyone runs it, or which of several drafts fits a target best."""
    quieten()
    from uag.cli.doctor import diagnose
    from uag.cli.doctor_tables import render
    from uag.cli.measured_tables import render_measured, render_ranking
    from uag.cli.ranking import MeasureOptions, measure_pair, rank
    from uag.loading import load_pair

    running_text = None if text is None else text.read_text(encoding="utf-8")
    options = MeasureOptions(prompts, running_text, num_prompts, max_new_tokens, temperature)
    if len(drafts or []) > 1:
        with error_console.status("the target writes", spinner="line") as status:
            ranking = rank(
                target,
                drafts or [],
                options,
                dtype=dtype,
                device=device,
                on_draft=lambda name: status.update(f"measuring {name}"),
            )
        if as_json:
            print_json(ranking.to_dict())
        else:
            console.print(render_ranking(ranking))
        return
    pair = load_pair(target, drafts[0] if drafts else None, dtype=dtype, device=device)
    report = diagnose(pair, running_text)
    measured = measure_pair(pair, options) if is_measured or prompts is not None else None
    if as_json:
        found = {} if measured is None else {"measured": measured.to_dict(), "verdict": measured.verdict}
        print_json(report.to_dict() | found)
        return
    console.print(render(report))
    if measured is not None:
        console.print(render_measured(measured))
