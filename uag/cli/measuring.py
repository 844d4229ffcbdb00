"""`uag demo`, `uag doctor` and `uag bench`: measure speed-ups."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from uag.cli import common
from uag.options import ARM_NAMES, BenchOptions

_PROMPTS = "Spec-Bench or HumanEval file (.jsonl, .jsonl.gz), or text with a prompt per line; default: bundled."
_DRAFTS = "Hub names, folders or GGUF files; several are ranked by speed; default: the demo's."
_ARMS = f"Arm to run, repeatable: {', '.join(ARM_NAMES)}; default: all."

Prompts = Annotated[Path | None, typer.Option(help=_PROMPTS)]
NumPrompts = Annotated[int, typer.Option(min=0, help="Prompts, evenly spaced over the file; 0: all.")]


def demo(
    num_prompts: Annotated[int, typer.Option("--prompts", min=1, help="Number of held-out prompts to measure.")] = 3,
    max_new_tokens: common.MaxNewTokens = 64,
    num_trials: common.NumTrials = 3,
    as_json: common.AsJson = False,
) -> None:
    """Show the speed-up on a bundled pair of models.

    They complete held-out Python code with plain decoding, with transformers' assisted generation, and with uag.
    """
    common.begin(None)
    import torch

    from uag import bench as library
    from uag.assistant import Assistant
    from uag.loading import load_pair

    torch.set_num_threads(1)  # for models this small, synchronizing threads costs more than it saves
    names = ("plain", "transformers", "uag")
    options = BenchOptions(arm_names=names, max_new_tokens=max_new_tokens, num_trials=num_trials)
    pair, prompts = load_pair(), _choose(None, num_prompts)
    common.report(f"measuring {', '.join(names)}")
    records = list(library.measure(pair, prompts, options))
    summaries, is_equal = library.summarize(records), all(record.refusal is None for record in records)
    verdict = library.verdict(summaries)
    assistant = Assistant(pair.draft, pair.draft_tokenizer, pair.target_tokenizer)
    showcase = library.complete(pair, assistant, prompts[0].text, max_new_tokens=max_new_tokens)
    if as_json:
        tables = {"summaries": [*map(asdict, summaries)], "records": [record.to_dict(pair) for record in records]}
        common.print_json({"is_equal": is_equal, "verdict": verdict, "showcase": showcase.to_dict()} | tables)
    else:
        common.show(library.colored(showcase).append("\n"))
        title = f"{max_new_tokens} new tokens, greedy, arms interleaved"
        common.console.print(library.summary_table(summaries, title=title))
        common.show(verdict, style="bold")
    if not is_equal:
        raise typer.Exit(1)


@common.with_flags(BenchOptions, num_trials=1)
def doctor(
    target: common.TargetArgument = None,
    drafts: Annotated[list[str] | None, typer.Argument(help=_DRAFTS)] = None,
    prompts: Prompts = None,
    num_prompts: NumPrompts = 8,
    dtype: common.Dtype = None,
    device: common.Device = None,
    as_json: common.AsJson = False,
    **flags: Any,
) -> None:
    """Measure whether a draft speeds up a target.

    The target generates plainly, with uag but without a draft, and with each draft, in turns. Several drafts are ranked
    by speed. With --draft-independent, each output is compared with that of uag without a draft, which must be equal.
    """
    common.begin(target, *(drafts or []))
    from uag import bench as library
    from uag.kernels import kernel

    options, chosen = BenchOptions(**flags), _choose(prompts, num_prompts)
    no_draft, ranked = library.rank(target, drafts, chosen, options, dtype=dtype, device=device)
    advice, products = library.advice(ranked), kernel.describe()
    if as_json:
        figures = {"without_draft": no_draft and asdict(no_draft), "drafts": [*map(asdict, ranked)]}
        common.print_json({"target": target or "demo target", "verdict": advice, "products": products} | figures)
        return
    common.show(advice, style="bold")
    common.console.print(library.summary_table([*([no_draft] if no_draft else ()), *ranked]))
    common.show(f"matrix products on a CPU: {products}")


@common.with_flags(BenchOptions)
def bench(
    target: common.Target = None,
    draft: common.Draft = None,
    prompts: Prompts = None,
    num_prompts: NumPrompts = 8,
    arms: Annotated[list[str] | None, typer.Option("--arm", help=_ARMS)] = None,
    dtype: common.Dtype = None,
    device: common.Device = None,
    as_json: common.AsJson = False,
    **flags: Any,
) -> None:
    """Compare ways to generate: equality of their outputs, then speed.

    Every output is compared with plain decoding's; with --draft-independent, the arm uag's with uag-no-draft's. The
    exit code is 1 if one of uag's outputs differs. With --json, one line is printed per prompt and arm.
    """
    common.begin(target, draft)
    from uag import bench as library
    from uag.loading import load_pair

    options, chosen = BenchOptions(arm_names=tuple(arms or ARM_NAMES), **flags), _choose(prompts, num_prompts)
    pair = load_pair(target, draft, dtype=dtype, device=device)
    common.report(f"measuring {', '.join(options.arm_names)}")
    records = []
    for record in library.measure(pair, chosen, options):
        records.append(record)
        if as_json:
            typer.echo(json.dumps(record.to_dict(pair), ensure_ascii=common.is_ascii()))
    if not as_json:
        title = "draft-independent: uag is compared with uag-no-draft" if options.draft_independent else None
        common.console.print(library.summary_table(library.summarize(records), title))
    if any(record.arm.startswith("uag") and record.refusal is not None for record in records):
        raise typer.Exit(1)


def _choose(file: Path | None, num_prompts: int) -> list[Any]:
    """Return prompts of a file, or bundled ones."""
    from uag import bench as library

    prompts = library.heldout_prompts() if file is None else library.read_prompts(file)
    return library.spread(prompts, num_prompts)
