"""The command line: `uag demo`, `uag generate`, `uag doctor`, `uag bench`, `uag distill`, `uag serve`.

Each command parses, makes one library call and prints. An expected error is one line on standard error and exit code 2.
The libraries behind a command are imported when it runs.
"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from uag._version import __version__
from uag.cli.common import (
    AsJson,
    Device,
    Draft,
    Dtype,
    FixedWidth,
    IsChat,
    MaxNewTokens,
    Target,
    Temperature,
    begin,
    console,
    print_json,
    read_text,
    report,
)
from uag.cli.distilling import distill
from uag.cli.examining import doctor
from uag.cli.serving import serve
from uag.errors import OptionError, UagError

_INTERRUPTED = 130
"""Exit code after Ctrl-C."""

app = typer.Typer(
    help="Make a large language model generate the same text faster, with any small model as its draft.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
NumTrials = Annotated[int, typer.Option("--trials", min=1, help="Timed runs of each arm on each prompt.")]


def main(arguments: list[str] | None = None) -> None:
    """Run the command line on `arguments` (None: those of the process) and exit."""
    try:
        app(arguments)
    except (UagError, OSError, ImportError) as error:
        print(f"uag: {' '.join(str(error).split())}", file=sys.stderr)  # noqa: T201 - rich would wrap the line
        sys.exit(2)
    except SystemExit as end:
        if end.code == _INTERRUPTED:
            print(file=sys.stderr)  # noqa: T201 - start the shell's prompt on a new line
        raise


def _print_version(is_requested: bool) -> None:
    if is_requested:
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
    num_prompts: Annotated[int, typer.Option("--prompts", min=1, help="Number of held-out prompts to measure.")] = 3,
    max_new_tokens: MaxNewTokens = 64,
    num_trials: NumTrials = 3,
    as_json: AsJson = False,
) -> None:
    """Show the speed-up on a bundled pair of models.

    They complete held-out Python code with plain decoding, with transformers' assisted generation, and with uag.
    """
    begin(None)
    import torch

    from uag.bench import BenchOptions, summary_table
    from uag.cli.demo import ARM_NAMES, colour, run_demo
    from uag.loading import load_pair

    torch.set_num_threads(1)  # for models this small, synchronizing threads costs more than it saves
    options = BenchOptions(arm_names=ARM_NAMES, max_new_tokens=max_new_tokens, num_trials=num_trials)
    pair = load_pair()
    report(f"measuring {', '.join(ARM_NAMES)}")
    result = run_demo(pair, options, num_prompts=num_prompts)
    if as_json:
        print_json(result.to_dict(pair))
    else:
        console.print(colour(result.showcase), soft_wrap=True)
        console.print()
        console.print(summary_table(result.summaries, title=f"{max_new_tokens} new tokens, greedy, arms interleaved"))
        console.print(result.verdict(), soft_wrap=True, highlight=False, style="bold")
    if not result.is_equal:
        raise typer.Exit(1)


@app.command()
def generate(
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", "-p", help="The text to continue; - reads standard input; default: a chat."),
    ] = None,
    target: Target = None,
    draft: Draft = None,
    max_new_tokens: MaxNewTokens = 128,
    temperature: Temperature = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
    is_chat: IsChat = False,
    prediction: Annotated[Path | None, typer.Option(help="File with the expected text.")] = None,
    fixed_width: FixedWidth = None,
    dtype: Dtype = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Continue a prompt with a target and a draft, and print the text as it is generated.

    Without --prompt, chat with the target.
    """
    if prompt is None and (as_json or prediction is not None):
        raise OptionError("--json and --prediction need --prompt: without it, uag generate is a chat.")
    if prompt is None and not sys.stdin.isatty():
        raise OptionError("Standard input is not a terminal. Pass --prompt TEXT, or --prompt - to read it from there.")
    expected = None if prediction is None else read_text(prediction, "prediction")
    begin(target, draft)
    from uag.cli.chat import chat
    from uag.cli.completion import complete
    from uag.loading import load_pair

    pair = load_pair(target, draft, dtype=dtype, device=device)
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    if prompt is None:
        return chat(pair, fixed_width, **options)
    result = complete(
        pair,
        sys.stdin.read() if prompt == "-" else prompt,
        **options,
        is_chat=is_chat,
        prediction=expected,
        fixed_width=fixed_width,
        streams=not as_json,
    )
    if as_json:
        print_json(result.to_dict())
    else:
        report(str(result.stats))
    return None


app.command()(doctor)


@app.command()
def bench(
    target: Target = None,
    draft: Draft = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="Spec-Bench or HumanEval file (.jsonl, .jsonl.gz), or text with a prompt per line; default: bundled."
        ),
    ] = None,
    num_prompts: Annotated[
        int, typer.Option("--num-prompts", min=0, help="Number of prompts, evenly spaced over the file; 0: all.")
    ] = 8,
    arms: Annotated[
        list[str] | None,
        typer.Option(
            "--arm",
            help="Arm to run, repeatable: plain, transformers, prompt-lookup, uag-no-draft, uag (the "
            "default: all of these), plain-bfloat16, llama.cpp.",
        ),
    ] = None,
    target_gguf: Annotated[str | None, typer.Option(help="GGUF file of the target, for the arm llama.cpp.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts per call.")] = 1,
    temperature: Temperature = 0.0,
    max_new_tokens: MaxNewTokens = 64,
    num_trials: NumTrials = 5,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
    is_chat: IsChat = False,
    cache: Annotated[
        str | None,
        typer.Option(help="cache_implementation of every arm's calls, for example static; default: transformers' own."),
    ] = None,
    is_compiled: Annotated[
        bool, typer.Option("--compile", help="Compile every arm's passes after the prompt; needs --cache static.")
    ] = False,
    fixed_width: FixedWidth = None,
    dtype: Dtype = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Compare ways to generate: equality of their outputs, then speed.

    Every output is compared with plain decoding's, and that of the arm uag with uag-no-draft's if --fixed-width is
    given. The exit code is 1 if one of uag's outputs differs. With --json, one line is printed per prompt and arm.
    """
    begin(target, draft)
    from uag import bench as library
    from uag.loading import load_pair

    options = library.BenchOptions(
        arm_names=tuple(arms or library.DEFAULT_ARM_NAMES),
        batch_size=batch_size,
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        num_trials=num_trials,
        seed=seed,
        is_chat=is_chat,
        cache=cache,
        is_compiled=is_compiled,
        target_gguf=target_gguf,
        fixed_width=fixed_width,
    )
    available = library.heldout_prompts() if prompts is None else library.read_prompts(prompts)
    chosen = library.spread(available, num_prompts or None)
    pair = load_pair(target, draft, dtype=dtype, device=device)
    report(f"measuring {', '.join(options.arm_names)}")
    records = []
    for record in library.measure(pair, chosen, options):
        records.append(record)
        if as_json:
            typer.echo(json.dumps(record.to_dict(pair), ensure_ascii=False))
    if not as_json:
        title = None if fixed_width is None else f"fixed width {fixed_width}: uag is compared with uag-no-draft"
        console.print(library.summary_table(library.summarize(records), title))
    if any(record.arm.startswith("uag") and not record.is_reported for record in records):
        raise typer.Exit(1)


app.command()(distill)
app.command()(serve)
