"""Speed on the demo pair: plain, transformers' own cross-tokenizer path, prompt lookup and uag.

    python benchmarks/greedy_speed.py [--prompts 8] [--tokens 64] [--trials 5] [--batch 1] [--temperature 0]
                                      [--target NAME --draft NAME] [--output FILE] [--plot FILE] [--compiled]

What `uag bench` measures, with the bundled prompts: one process, arms in turns, medians of the trials, after a check
that all outputs are equal. The last lines compare uag with plain decoding and with transformers' own path.
"""

import json
from pathlib import Path

import common

from uag import bench
from uag.loading import load_pair


def main() -> None:
    """Measure, print the table and the ratios, write the records."""
    parser = common.make_parser(__doc__, prompts=8, tokens=64, trials=5, batch=1)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--target")
    parser.add_argument("--draft")
    parser.add_argument("--compiled", action="store_true", help="uag with compile_draft=True, too")
    parser.add_argument("--plot", type=Path, help="PNG")
    arguments = common.parse(parser)

    pair = load_pair(arguments.target, arguments.draft)
    options = bench.BenchOptions(
        arm_names=(*bench.DEFAULT_ARM_NAMES, *(["uag-compiled"] if arguments.compiled else [])),
        batch_sizes=(arguments.batch,),
        temperatures=(arguments.temperature,),
        max_new_tokens=arguments.tokens,
        num_trials=arguments.trials,
    )
    records = list(bench.measure(pair, bench.spread(bench.heldout_prompts(), arguments.prompts), options))
    if arguments.output is not None:
        lines = (json.dumps(record.to_dict(pair)) + "\n" for record in records)
        arguments.output.write_text("".join(lines), encoding="utf-8")
    if arguments.plot is not None:
        bench.save_plot(records, arguments.plot)

    summaries = bench.summarize(records)
    title = f"{pair.target_name} <- {pair.draft_name}, {arguments.prompts} prompts x {arguments.tokens} tokens"
    speeds = {summary.arm: summary.tokens_per_s for summary in summaries if summary.tokens_per_s is not None}
    others = [name for name in ("plain", "transformers") if name in speeds and "uag" in speeds]
    ratios = (f"uag over {other}: {speeds['uag'] / speeds[other]:.2f}" for other in others)
    common.report(bench.summary_table(summaries, title=title), *ratios, dtype=pair.target.dtype)


if __name__ == "__main__":
    main()
