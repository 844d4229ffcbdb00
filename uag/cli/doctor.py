"""`uag doctor`: what drafts gain for a target."""

from pathlib import Path
from typing import Annotated

import typer

from uag.cli import common

_DRAFTS = "Hub names, folders or GGUF files; several are ranked by speed; default: the demo's."


def doctor(
    target: Annotated[str | None, typer.Argument(help="Hub name or folder of the target; default: the demo's.")] = None,
    drafts: Annotated[list[str] | None, typer.Argument(help=_DRAFTS)] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(exists=True, help="Prompts to measure on, as for uag bench; default: bundled Python."),
    ] = None,
    num_prompts: Annotated[int, typer.Option(min=1, help="Number of prompts, evenly spaced over the file.")] = 8,
    max_new_tokens: common.MaxNewTokens = 64,
    temperature: common.Temperature = 0.0,
    fixed_width: common.FixedWidth = None,
    dtype: common.Dtype = None,
    device: common.Device = None,
    as_json: common.AsJson = False,
) -> None:
    """Measure whether a draft speeds up a target.

    The target generates plainly and with each draft, in turns. Several drafts are ranked by speed. With --fixed-width,
    each output is compared with that of the same width without a draft, which must be equal.
    """
    common.begin(target, *(drafts or []))
    from uag import bench
    from uag.products import kernel

    available = bench.heldout_prompts() if prompts is None else bench.read_prompts(prompts)
    chosen = bench.spread(available, num_prompts)
    options = bench.BenchOptions(
        temperature=temperature, max_new_tokens=max_new_tokens, num_trials=1, fixed_width=fixed_width
    )
    ranking = bench.rank(target, drafts, chosen, options, dtype=dtype, device=device)
    if as_json:
        common.print_json(ranking.to_dict() | {"products": kernel.describe()})
        return
    common.show(ranking.verdict, style="bold")
    common.console.print(bench.summary_table(ranking.drafts))
    for name, loss in ranking.losses.items():
        common.show(f"{name}: {loss}")
    common.show(f"matrix products on a CPU: {kernel.describe()}")
