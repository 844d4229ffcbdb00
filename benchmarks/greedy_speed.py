"""Speed on the demo pair: plain, transformers' own cross-tokenizer path, prompt lookup and uag.

    python benchmarks/greedy_speed.py [--prompts 8] [--tokens 64] [--trials 5] [--batch 1] [--temperature 0]
                                      [--target NAME --draft NAME] [--output FILE] [--plot FILE] [--compiled]

One process, arms in turns, medians of the trials, after a check that all outputs are equal. The last lines compare
uag with plain decoding, with transformers' own path and with uag's own loop without a draft.
"""

import argparse
import json
from pathlib import Path

from rich.console import Console
from transformers.utils import logging

from uag.bench import BenchOptions, heldout_prompts, measure, save_plot, spread, summarize, summary_table
from uag.bench.environment import describe_environment
from uag.loading import load_pair

ARM_NAMES = ("plain", "transformers", "prompt-lookup", "uag-no-draft", "uag-fixed", "uag")


def main() -> None:
    """Measure, print the table and the ratios, write the records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--target")
    parser.add_argument("--draft")
    parser.add_argument("--output", type=Path, help="JSON lines, one per prompt and arm")
    parser.add_argument("--compiled", action="store_true", help="uag with compile_draft=True, too")
    parser.add_argument("--plot", type=Path, help="PNG")
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()

    pair = load_pair(arguments.target, arguments.draft)
    options = BenchOptions(
        arm_names=(*ARM_NAMES, "uag-compiled") if arguments.compiled else ARM_NAMES,
        batch_sizes=(arguments.batch,),
        temperatures=(arguments.temperature,),
        max_new_tokens=arguments.tokens,
        num_trials=arguments.trials,
    )
    records = list(measure(pair, spread(heldout_prompts(), arguments.prompts), options))
    if arguments.output is not None:
        lines = (json.dumps(record.to_dict(pair)) + "\n" for record in records)
        arguments.output.write_text("".join(lines), encoding="utf-8")
    if arguments.plot is not None:
        save_plot(records, arguments.plot)

    summaries = summarize(records)
    console = Console()
    console.print(describe_environment())
    title = f"{pair.target_name} <- {pair.draft_name}, {arguments.prompts} prompts x {arguments.tokens} tokens"
    console.print(summary_table(summaries, title=title))
    speeds = {summary.arm: summary.tokens_per_s for summary in summaries if summary.tokens_per_s is not None}
    for other in ("plain", "transformers", "uag-no-draft"):
        if other in speeds and "uag" in speeds:
            console.print(f"uag over {other}: {speeds['uag'] / speeds[other]:.2f}", highlight=False)


if __name__ == "__main__":
    main()
