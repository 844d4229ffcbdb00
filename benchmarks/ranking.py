"""Does the doctor know? Drafts for one target, ranked by `uag doctor TARGET DRAFT1 DRAFT2 ...`, beside their speed.

    python benchmarks/ranking.py TARGET DRAFT [DRAFT ...] [--prompt-file FILE] [--prompts 8] [--tokens 64] [--trials 3]
                                 [--threads 2] [--dtype float32] [--output FILE]

Drafts are folders, hub names or GGUF files; without --prompt-file the prompts are the bundled ones. First the doctor
measures and ranks; then whole greedy calls on the same prompts are timed, plain and with each draft in turns, every
output equal to plain decoding's. "expected" is the doctor's figure with its interval, "measured" the ratio of the total
times, the median of the trials behind one that warms up.
"""

import argparse
import itertools
import os
import statistics
from collections.abc import Iterator
from pathlib import Path

import common
import torch

import uag
from uag.bench import heldout_prompts, read_prompts, spread
from uag.bench.arms import Arm, assisted
from uag.cli.ranking import MeasureOptions, rank
from uag.gguf import GgufDraft
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
"""Speeds that differ by less are taken to be equal: two runs differ by as much."""


def main() -> None:
    """Rank, then measure."""
    parser = common.make_parser(__doc__, prompts=8, tokens=64, trials=3, threads=os.cpu_count() or 1)
    parser.add_argument("target")
    parser.add_argument("drafts", nargs="+", metavar="DRAFT")
    parser.add_argument("--prompt-file", type=Path, help="HumanEval's or Spec-Bench's, or of that form")
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
        low, high = (expected.value if edge is None else edge for edge in (expected.low, expected.high))
        row |= {"expected": expected.value, "low": low, "high": high, "megabytes": (ranked.num_bytes or 0) / 1e6}
        row |= {"agreement": f"{ranked.measured.acceptance[0].agreement}", "measured": speeds[ranked.name]}
        yield row | {"ratio": expected.value / speeds[ranked.name]}


def _speeds(arguments: argparse.Namespace, names: list[str]) -> dict[str, float]:
    """Return plain decoding's time over that with each draft, arms in turns."""
    target, tokenizer = load_model(arguments.target, dtype=arguments.dtype), load_tokenizer(arguments.target)
    arms = {"": Arm("plain", target.generate)}
    for name in names:
        draft = load_draft(name, dtype=arguments.dtype)
        of_draft = draft.tokenizer if isinstance(draft, GgufDraft) else load_tokenizer(name)
        arms[name] = assisted(name, uag.Assistant(draft, of_draft, tokenizer), target)
    pair = Pair(target, tokenizer, arguments.target, None, tokenizer, "")
    file = arguments.prompt_file
    prompts = spread(heldout_prompts() if file is None else read_prompts(file), arguments.prompts)
    options = {"max_new_tokens": arguments.tokens, "do_sample": False}
    trials = []
    for _ in range(arguments.trials + 1):
        totals = dict.fromkeys(arms, 0.0)
        for prompt in prompts:
            plain = None
            for name, arm in arms.items():
                run = common.run_equal(pair, arm, prompt.text, options, plain)
                plain = plain or run
                totals[name] += run.seconds
        trials.append(totals)
    return {name: statistics.median(t[""] / t[name] for t in trials[1:]) for name in names}


def _order(rows: list[common.Row]) -> list[str]:
    """Say whether some draft stands before a faster one, differences that are noise left out."""
    known = [row for row in rows if "measured" in row]
    wrong = [
        f"{slow['draft']} before {fast['draft']}"
        for slow, fast in itertools.combinations(known, 2)
        if all(one > _NOISE * other for one, other in _sides(slow, fast))
    ]
    if wrong:
        return [f"not in the order of the measured speeds: {', '.join(wrong)}"]
    return ["no draft that is expected to be faster by 5 % is measured to be slower by 5 %"]


def _sides(slow: common.Row, fast: common.Row) -> list[tuple[float, float]]:
    return [(slow["expected"], fast["expected"]), (fast["measured"], slow["measured"])]


if __name__ == "__main__":
    main()
