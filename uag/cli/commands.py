"""The command line: `uag demo`, `uag generate`, `uag doctor`, `uag bench`, `uag distill`.

Each command parses, makes one library call and prints. An expected error is one line on standard error and exit code 2.
The libraries behind a command are imported when it runs.
"""

import json
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.progress import track

from uag._version import __version__
from uag.cli.common import (
    AsJson,
    Device,
    Draft,
    Dtype,
    IsChat,
    MaxNewTokens,
    Target,
    console,
    error_console,
    print_json,
    quieten,
)
from uag.cli.distilling import distill
from uag.cli.examining import doctor
from uag.errors import UagError

T = TypeVar("T")

app = typer.Typer(
    help="Make a large language model write the same text sooner, with any small model as its draft.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
NumTrials = Annotated[int, typer.Option("--trials", min=1, help="Timed runs of each arm on each prompt.")]


def main(arguments: list[str] | None = None) -> None:
    """Run the command line on `arguments` (None: the process's own) and exit."""
    try:
        app(arguments)
    except (UagError, OSError, ImportError) as error:
        print(f"uag: {' '.join(str(error).split())}", file=sys.stderr)  # noqa: T201 - rich would wrap the line
        sys.exit(2)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"uag {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    num_prompts: Annotated[int, typer.Option("--prompts", min=1, help="How many held-out prompts to measure.")] = 3,
    max_new_tokens: MaxNewTokens = 64,
    num_trials: NumTrials = 3,
    as_json: AsJson = False,
) -> None:
    """Complete Python that the bundled pair has never seen: plain, transformers' own way, and with uag."""
    quieten()
    import torch

    from uag.bench import BenchOptions, summary_table
    from uag.cli.demo import ARM_NAMES, colour, run_demo
    from uag.loading import load_pair

    torch.set_num_threads(1)  # models this small lose more to threads that wait than they gain
    options = BenchOptions(arm_names=ARM_NAMES, max_new_tokens=max_new_tokens, num_trials=num_trials)
    pair = load_pair()
    shown = run_demo(pair, options, num_prompts=num_prompts, track=partial(_track, is_shown=not as_json))
    if as_json:
        print_json(shown.to_dict(pair))
    else:
        console.print(colour(shown.showcase), soft_wrap=True)
        console.print()
        console.print(summary_table(shown.summaries, title=f"{max_new_tokens} new tokens, greedy, arms in turns"))
        console.print(shown.verdict(), soft_wrap=True, highlight=False, style="bold")
    if not shown.is_equal:
        raise typer.Exit(1)


@app.command()
def generate(
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="The text to continue; - reads standard input.")],
    target: Target = None,
    draft: Draft = None,
    max_new_tokens: MaxNewTokens = 128,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
    is_chat: IsChat = False,
    prediction: Annotated[Path | None, typer.Option(help="File with the text that is expected.")] = None,
    dtype: Dtype = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Continue a prompt with the target, assisted by the draft; the text appears as it is written."""
    quieten()
    from uag.cli.completion import complete
    from uag.loading import load_pair

    pair = load_pair(target, draft, dtype=dtype, device=device)
    result = complete(
        pair,
        sys.stdin.read() if prompt == "-" else prompt,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
        is_chat=is_chat,
        prediction=None if prediction is None else prediction.read_text(encoding="utf-8"),
        on_text=(lambda _: None) if as_json else partial(print, end="", flush=True),
    )
    if as_json:
        print_json(result.to_dict())
        return
    console.print()
    stats = result.stats
    summary = f"{stats.num_output_tokens} tokens in {stats.total_s:.2f} s, {stats.num_target_forwards} target passes"
    if stats.num_candidate_tokens:
        summary += f", {stats.acceptance_rate:.0%} of {stats.num_candidate_tokens} candidates accepted"
    error_console.print(summary, style="dim", highlight=False)


app.command()(doctor)


@app.command()
def bench(
    target: Target = None,
    draft: Draft = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="Spec-Bench or HumanEval file (.jsonl, .jsonl.gz) or text, a prompt a line; default: bundled."
        ),
    ] = None,
    num_prompts: Annotated[
        int, typer.Option("--num-prompts", min=0, help="Take that many, evenly spaced; 0: all.")
    ] = 8,
    arms: Annotated[
        list[str] | None,
        typer.Option(
            "--arm",
            help="Arm to run, repeatable: plain, transformers, prompt-lookup, uag-no-draft, uag-fixed, uag (the "
            "default: all of these), plain-compiled, plain-bfloat16, llama.cpp.",
        ),
    ] = None,
    target_gguf: Annotated[str | None, typer.Option(help="GGUF file of the target, for the arm llama.cpp.")] = None,
    batch_sizes: Annotated[list[int] | None, typer.Option("--batch-size", min=1, help="Repeatable.")] = None,
    temperatures: Annotated[list[float] | None, typer.Option("--temperature", min=0.0, help="Repeatable.")] = None,
    max_new_tokens: MaxNewTokens = 64,
    num_candidate_tokens: Annotated[int, typer.Option("--candidates", min=1, help="Length of the arm uag-fixed.")] = 5,
    num_trials: NumTrials = 5,
    seed: int = 0,
    is_chat: IsChat = False,
    output: Annotated[
        Path | None,
        typer.Option(help="Write one JSON line per prompt and arm here; results of an identical run are reused."),
    ] = None,
    dtype: Dtype = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Measure a pair against plain decoding, transformers' own path and prompt lookup, equality first."""
    quieten()
    from uag import bench as library
    from uag.loading import load_pair

    options = library.BenchOptions(
        arm_names=tuple(arms or library.DEFAULT_ARM_NAMES),
        batch_sizes=tuple(batch_sizes or (1,)),
        temperatures=tuple(temperatures or (0.0,)),
        max_new_tokens=max_new_tokens,
        num_trials=num_trials,
        num_candidate_tokens=num_candidate_tokens,
        seed=seed,
        is_chat=is_chat,
        target_gguf=target_gguf,
    )
    available = library.heldout_prompts() if prompts is None else library.read_prompts(prompts)
    chosen = library.spread(available, num_prompts or None)
    pair = load_pair(target, draft, dtype=dtype, device=device)
    journal = None if output is None else library.Journal(output, library.settings_of(pair, options))
    if journal is not None and journal.num_others:
        typer.echo(f"{output}: {journal.num_others} rows measured with other settings are not reused", err=True)
    records = []
    for record in library.measure(pair, chosen, options, journal=journal, on_run=library.Progress("measuring")):
        records.append(record)
        if as_json:
            typer.echo(json.dumps(record.to_dict(pair), ensure_ascii=False))
    if not as_json:
        console.print(library.summary_table(library.summarize(records)))
    if any(record.arm.startswith("uag") and not record.is_reported for record in records):
        raise typer.Exit(1)


def _track(records: Iterable[T], total: int, *, is_shown: bool) -> Iterable[T]:
    """Hand records on, with a progress bar on standard error."""
    return track(records, "measuring", total, console=error_console, transient=True, disable=not is_shown)


app.command()(distill)
