"""Compare the ranking of `uag doctor TARGET DRAFT1 DRAFT2 ...` with the measured speed of each draft.

    python benchmarks/ranking.py TARGET DRAFT [DRAFT ...] [--prompt-file FILE] [--prompts 8] [--tokens 64] [--trials 3]
                                 [--threads 2] [--dtype float32] [--output FILE]

Drafts are folders, hub names or GGUF files; the default prompts are the bundled ones. First the doctor measures and
ranks. Then greedy calls on the same prompts are timed, plain decoding and each draft interleaved, and every output is
compared. "expected" is the doctor's figure with its interval, "measured" the ratio of the times.
"""

import argparse
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import common
import torch

import uag
from uag.bench import assisted, heldout_prompts, read_prompts, spread, summarize
from uag.cli.ranking import MeasureOptions, rank
from uag.loading import Pair, load_draft, load_model, load_tokenizer

COLUMNS = {
    "draft": "{draft}",
    "MB": "{megabytes:.0f}",
    "agreement": "{agreement}",
    "expected": "{expected:.2f} ({low:.2f} to {high:.2f})",
    "measured": "{measured:.2f}",
    "expected / measured": "{ratio:.2f}",
    "": "{refusal}",
}

_NOISE = 1.05
"""Speeds whose ratio is smaller count as equal. Increase on a noisy machine; decrease to compare more strictly."""


def main() -> None:
    """Rank, then measure."""
    parser = common.make_parser(__doc__, prompts=8, tokens=64, trials=3, threads=os.cpu_count() or 1)
    parser.add_argument("target")
    parser.add_argument("drafts", nargs="+", metavar="DRAFT")
    parser.add_argument("--prompt-file", type=Path, help="HumanEval or Spec-Bench file, or one in the same format")
    parser.add_argument("--dtype", default="float32")
    arguments = common.parse(parser)
    torch.set_num_threads(arguments.threads)
    title = f"{Path(arguments.target).name}: {arguments.prompts} prompts x {arguments.tokens} tokens, greedy"
    common.show(arguments, title, COLUMNS, _measure(arguments), notes=_order)


def _measure(arguments: argparse.Namespace) -> Iterator[common.Row]:
    options = MeasureOptions(
        arguments.prompt_file, num_prompts=arguments.prompts, max_new_tokens=arguments.tokens, temperature=0.0
    )
    ranking = rank(arguments.target, arguments.drafts, options, dtype=arguments.dtype)
    speeds = _speeds(arguments, [ranked.name for ranked in ranking.drafts if ranked.measured is not None])
    for ranked in ranking.drafts:
        row: common.Row = {"draft": Path(ranked.name).name, "dtype": arguments.dtype}
        if ranked.measured is None:
            yield row | {"refusal": ranked.refusal}
            continue
        expected = ranked.measured.forecast.speed_up
        low, high = (expected.value if bound is None else bound for bound in (expected.low, expected.high))
        row |= {"expected": expected.value, "low": low, "high": high, "megabytes": (ranked.num_bytes or 0) / 1e6}
        row |= {"agreement": f"{ranked.measured.acceptance[0].agreement}", "measured": speeds[ranked.name]}
        yield row | {"ratio": expected.value / speeds[ranked.name]}


def _speeds(arguments: argparse.Namespace, names: list[str]) -> dict[str, float]:
    """Return the speed with each draft relative to plain decoding."""
    target, tokenizer = load_model(arguments.target, dtype=arguments.dtype), load_tokenizer(arguments.target)
    arms = []
    for name in names:
        draft = load_draft(name, dtype=arguments.dtype)
        arms.append(assisted(name, uag.Assistant(draft, load_tokenizer(name), tokenizer), target))
    pair = Pair(target, tokenizer, arguments.target, None, tokenizer, "each draft")
    file = arguments.prompt_file
    prompts = spread(heldout_prompts() if file is None else read_prompts(file), arguments.prompts)
    texts = [prompt.text for prompt in prompts]
    records = common.measure_equal(pair, arms, texts, arguments.tokens, arguments.trials)
    return {summary.arm: summary.speed_up or 0.0 for summary in summarize(records)}


def _order(rows: list[common.Row]) -> list[str]:
    """Return a line with whether the expected speeds are in the order of the measured ones, up to noise."""
    measured = [row for row in rows if "measured" in row]
    wrong = [
        f"{slow['draft']} before {fast['draft']}"
        for slow, fast in itertools.combinations(measured, 2)
        if slow["expected"] > _NOISE * fast["expected"] and fast["measured"] > _NOISE * slow["measured"]
    ]
    if wrong:
        return [f"not in the order of the measured speeds: {', '.join(wrong)}"]
    return ["no draft that is expected to be faster by 5 % is measured to be slower by 5 %"]


if __name__ == "__main__":
    main()
