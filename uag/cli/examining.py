"""`uag doctor`: what drafts would gain for a target."""

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
    begin(target, *(drafts or []))
    from uag.cli.doctor_tables import show_ranking
    from uag.cli.measured import MeasureOptions
    from uag.cli.ranking import rank
    from uag.loading import demo_folder

    options = MeasureOptions(prompts, num_prompts, max_new_tokens, temperature)
    names = drafts or [demo_folder("draft")]
    ranking = rank(target, names, options, dtype=dtype, device=device, on_step=report)
    if as_json:
        print_json(ranking.to_dict())
    else:
        show_ranking(console, ranking)
