"""`uag doctor`: what drafts gain for a target."""

from pathlib import Path
from typing import Annotated

import typer

from uag.cli.common import AsJson, Device, Dtype, FixedWidth, MaxNewTokens, Temperature, begin, console, print_json


def doctor(
    target: Annotated[str | None, typer.Argument(help="Hub name or folder of the target; default: the demo's.")] = None,
    drafts: Annotated[
        list[str] | None,
        typer.Argument(help="Hub names, folders or GGUF files; several are ranked by speed; default: the demo's."),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(exists=True, help="Prompts to measure on, as for uag bench; default: bundled Python."),
    ] = None,
    num_prompts: Annotated[int, typer.Option(min=1, help="Number of prompts, evenly spaced over the file.")] = 8,
    max_new_tokens: MaxNewTokens = 64,
    temperature: Temperature = 0.0,
    fixed_width: FixedWidth = None,
    dtype: Dtype = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Measure whether a draft speeds up a target.

    The target generates plainly and with each draft, in turns. Several drafts are ranked by speed. With --fixed-width,
    each output is compared with that of the same width without a draft, which must be equal.
    """
    begin(target, *(drafts or []))
    from uag.bench import BenchOptions, heldout_prompts, read_prompts, spread, summary_table
    from uag.cli.ranking import rank
    from uag.loading import demo_folder

    available = heldout_prompts() if prompts is None else read_prompts(prompts)
    options = BenchOptions(
        temperature=temperature, max_new_tokens=max_new_tokens, num_trials=1, fixed_width=fixed_width
    )
    ranking = rank(
        target,
        drafts or [demo_folder("draft")],
        spread(available, num_prompts),
        options,
        dtype=dtype,
        device=device,
    )
    if as_json:
        print_json(ranking.to_dict())
        return
    console.print(ranking.verdict, style="bold", highlight=False, markup=False, soft_wrap=True)
    console.print(summary_table(ranking.drafts))
    for name, loss in ranking.losses.items():
        console.print(f"{name}: {loss}", highlight=False, markup=False, soft_wrap=True)
