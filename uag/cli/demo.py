"""`uag demo`: the speed-up on the bundled pair."""

from typing import Annotated

import typer

from uag.cli import common


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
