"""`uag bench`: compare ways to generate."""

import json
from pathlib import Path
from typing import Annotated

import typer

from uag.cli import common

_ARMS = "Arm to run, repeatable: plain, transformers, prompt-lookup, uag-no-draft, uag; default: all."
_PROMPTS = "Spec-Bench or HumanEval file (.jsonl, .jsonl.gz), or text with a prompt per line; default: bundled."
_CACHE = "cache_implementation of every arm's calls, for example static; default: transformers' own."


def bench(
    target: common.Target = None,
    draft: common.Draft = None,
    prompts: Annotated[Path | None, typer.Option(help=_PROMPTS)] = None,
    num_prompts: Annotated[int, typer.Option(min=0, help="Prompts, evenly spaced over the file; 0: all.")] = 8,
    arms: Annotated[list[str] | None, typer.Option("--arm", help=_ARMS)] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts per call.")] = 1,
    temperature: common.Temperature = 0.0,
    max_new_tokens: common.MaxNewTokens = 64,
    num_trials: common.NumTrials = 5,
    seed: common.Seed = 0,
    is_chat: common.IsChat = False,
    cache: Annotated[str | None, typer.Option(help=_CACHE)] = None,
    is_compiled: Annotated[
        bool, typer.Option("--compile", help="Compile every arm's passes after the prompt; needs --cache static.")
    ] = False,
    fixed_width: common.FixedWidth = None,
    dtype: common.Dtype = None,
    device: common.Device = None,
    as_json: common.AsJson = False,
) -> None:
    """Compare ways to generate: equality of their outputs, then speed.

    Every output is compared with plain decoding's, and that of the arm uag with uag-no-draft's if --fixed-width is
    given. The exit code is 1 if one of uag's outputs differs. With --json, one line is printed per prompt and arm.
    """
    common.begin(target, draft)
    from uag import bench as library
    from uag.loading import load_pair

    options = library.BenchOptions(
        arm_names=tuple(arms or library.ARM_NAMES),
        batch_size=batch_size,
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        num_trials=num_trials,
        seed=seed,
        is_chat=is_chat,
        cache=cache,
        is_compiled=is_compiled,
        fixed_width=fixed_width,
    )
    available = library.heldout_prompts() if prompts is None else library.read_prompts(prompts)
    chosen = library.spread(available, num_prompts or None)
    pair = load_pair(target, draft, dtype=dtype, device=device)
    common.report(f"measuring {', '.join(options.arm_names)}")
    records = []
    for record in library.measure(pair, chosen, options):
        records.append(record)
        if as_json:
            typer.echo(json.dumps(record.to_dict(pair), ensure_ascii=False))
    if not as_json:
        title = None if fixed_width is None else f"fixed width {fixed_width}: uag is compared with uag-no-draft"
        common.console.print(library.summary_table(library.summarize(records), title))
    if any(record.arm.startswith("uag") and not record.is_reported for record in records):
        raise typer.Exit(1)
