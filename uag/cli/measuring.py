"""`uag demo`, `uag doctor` and `uag bench`: measure speed-ups."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from uag.cli import common

_PROMPTS = "Spec-Bench or HumanEval file (.jsonl, .jsonl.gz), or text with a prompt per line; default: bundled."
_COMPILE = "Compile every arm's passes after the prompt; needs --cache static."
_DRAFTS = "Hub names, folders or GGUF files; several are ranked by speed; default: the demo's."
_ARMS = "Arm to run, repeatable: plain, transformers, prompt-lookup, uag-no-draft, uag; default: all."
_CACHE = "cache_implementation of every arm's calls, for example static; default: transformers' own."

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

    from uag.bench import DEMO_ARM_NAMES, BenchOptions, colored, run_demo, summary_table
    from uag.loading import load_pair

    torch.set_num_threads(1)  # for models this small, synchronizing threads costs more than it saves
    options = BenchOptions(arm_names=DEMO_ARM_NAMES, max_new_tokens=max_new_tokens, num_trials=num_trials)
    pair = load_pair()
    common.report(f"measuring {', '.join(DEMO_ARM_NAMES)}")
    result = run_demo(pair, options, num_prompts=num_prompts)
    if as_json:
        common.print_json(result.to_dict(pair))
    else:
        common.show(colored(result.showcase).append("\n"))
        title = f"{max_new_tokens} new tokens, greedy, arms interleaved"
        common.console.print(summary_table(result.summaries, title=title))
        common.show(result.verdict, style="bold")
    if not result.is_equal:
        raise typer.Exit(1)


def doctor(
    target: common.TargetArgument = None,
    drafts: Annotated[list[str] | None, typer.Argument(help=_DRAFTS)] = None,
    prompts: Prompts = None,
    num_prompts: NumPrompts = 8,
    max_new_tokens: common.MaxNewTokens = 64,
    temperature: common.Temperature = 0.0,
    draft_independent: common.DraftIndependent = False,
    compile_draft: common.CompileDraft = False,
    dtype: common.Dtype = None,
    device: common.Device = None,
    as_json: common.AsJson = False,
) -> None:
    """Measure whether a draft speeds up a target.

    The target generates plainly, with uag but without a draft, and with each draft, in turns. Several drafts are ranked
    by speed. With --draft-independent, each output is compared with that of uag without a draft, which must be equal.
    """
    common.begin(target, *(drafts or []))
    from uag import bench as library
    from uag.products import kernel

    options = library.BenchOptions(
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        num_trials=1,
        draft_independent=draft_independent,
        compile_draft=compile_draft,
    )
    chosen = _choose(prompts, num_prompts)
    ranking = library.rank(target, drafts, chosen, options, dtype=dtype, device=device)
    if as_json:
        common.print_json(ranking.to_dict() | {"products": kernel.describe()})
        return
    common.show(ranking.verdict, style="bold")
    without_draft = [ranking.without_draft] if ranking.without_draft is not None else []
    common.console.print(library.summary_table([*without_draft, *ranking.drafts]))
    for name, loss in ranking.losses.items():
        common.show(f"{name}: {loss}")
    common.show(f"matrix products on a CPU: {kernel.describe()}")


def bench(
    target: common.Target = None,
    draft: common.Draft = None,
    prompts: Prompts = None,
    num_prompts: NumPrompts = 8,
    arms: Annotated[list[str] | None, typer.Option("--arm", help=_ARMS)] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts per call.")] = 1,
    temperature: common.Temperature = 0.0,
    max_new_tokens: common.MaxNewTokens = 64,
    num_trials: common.NumTrials = 5,
    seed: common.Seed = 0,
    is_chat: common.IsChat = False,
    cache: Annotated[str | None, typer.Option(help=_CACHE)] = None,
    is_compiled: Annotated[bool, typer.Option("--compile", help=_COMPILE)] = False,
    draft_independent: common.DraftIndependent = False,
    compile_draft: common.CompileDraft = False,
    dtype: common.Dtype = None,
    device: common.Device = None,
    as_json: common.AsJson = False,
) -> None:
    """Compare ways to generate: equality of their outputs, then speed.

    Every output is compared with plain decoding's; with --draft-independent, the arm uag's with uag-no-draft's. The
    exit code is 1 if one of uag's outputs differs. With --json, one line is printed per prompt and arm.
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
        draft_independent=draft_independent,
        compile_draft=compile_draft,
    )
    chosen = _choose(prompts, num_prompts)
    pair = load_pair(target, draft, dtype=dtype, device=device)
    common.report(f"measuring {', '.join(options.arm_names)}")
    records = []
    for record in library.measure(pair, chosen, options):
        records.append(record)
        if as_json:
            typer.echo(json.dumps(record.to_dict(pair), ensure_ascii=common.is_ascii()))
    if not as_json:
        title = "draft-independent: uag is compared with uag-no-draft" if draft_independent else None
        common.console.print(library.summary_table(library.summarize(records), title))
    if any(record.arm.startswith("uag") and record.refusal is not None for record in records):
        raise typer.Exit(1)


def _choose(file: Path | None, num_prompts: int) -> list[Any]:
    """Return prompts of a file, or bundled ones."""
    from uag import bench as library

    prompts = library.heldout_prompts() if file is None else library.read_prompts(file)
    return library.spread(prompts, num_prompts)
