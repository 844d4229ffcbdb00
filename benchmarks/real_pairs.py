"""Real pairs: every way to generate on HumanEval and Spec-Bench prompts, equality first.

    python benchmarks/real_pairs.py FOLDER [--pairs NAME ...] [--arms NAME ...] [--prompts 10] [--tokens 64]
                                    [--trials 3] [--threads 2] [--dtype float32] [--temperatures 0 0.7]
                                    [--warm-up each|once]
                                    [--humaneval FILE] [--spec-bench FILE] [--output rows.jsonl]

FOLDER holds a folder for each model (qwen2.5-coder-1.5b, ...), and NAME.gguf beside it for the arm uag-gguf. HumanEval
is completed as it is; Spec-Bench's first turns go through the target's chat template where it has one. Arms take turns
in one process; each is run once untimed, compared with plain decoding id for id, then timed.

plain           the target alone, `model.generate`
transformers    transformers' own assisted generation with the draft in PyTorch
prompt-lookup   transformers' own n-gram lookup
uag             uag with the draft in PyTorch
uag-gguf        uag with the draft in GGUF, run by llama.cpp
uag-alone       uag without a draft: n-grams, fast products
uag-fixed       uag with the draft in PyTorch, five candidates in every round; not measured unless asked for

--output takes a row for each prompt and arm as soon as it is measured; a second run with the same settings goes on.
"""

import argparse
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common
import torch
from rich.table import Table

from uag import Assistant, bench
from uag.bench.arms import Arm, assisted
from uag.errors import UagError
from uag.loading import Pair, load_draft, load_pair, load_tokenizer

PROMPTS = common.MODELS.parent / "prompts"
PAIRS = {
    "qwen1.5b<-smollm2": ("qwen2.5-coder-1.5b", "smollm2-135m"),
    "qwen0.5b<-smollm2": ("qwen2.5-coder-0.5b", "smollm2-135m"),
    "qwen1.5b<-qwen0.5b": ("qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b"),
    "gemma<-smollm2": ("gemma3-270m", "smollm2-135m"),
    "smollm2<-gemma": ("smollm2-135m", "gemma3-270m"),
}
ARMS = ("plain", "transformers", "prompt-lookup", "uag", "uag-gguf", "uag-alone", "uag-fixed")
HEADINGS = ("arm", "tok/s", "speed-up", "tok/pass", "accepted", "draft passes/cand.", "equal")


@dataclass(frozen=True)
class Suite:
    """Prompts of one kind; `is_chat` where they are turns of a chat."""

    name: str
    prompts: list[bench.Prompt]
    is_chat: bool


def main() -> None:
    """Measure all pairs, and print a table for each pair and kind of prompts."""
    arguments = common.parse(_parser())
    torch.set_num_threads(arguments.threads)
    for name in arguments.pairs:
        folders = [arguments.folder / model for model in PAIRS[name]]
        missing = [str(folder) for folder in folders if not folder.is_dir()]
        if missing:
            print(f"{name}: left out, there is no {' and no '.join(missing)}", flush=True)
            continue
        _measure_pair(name, *folders, arguments)


def _parser() -> argparse.ArgumentParser:
    parser = common.make_parser(__doc__, prompts=10, tokens=64, trials=3, threads=os.cpu_count() or 1)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pairs", nargs="+", choices=PAIRS, default=list(PAIRS), metavar="NAME", help=", ".join(PAIRS))
    names = ", ".join(ARMS)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS[:-1]), metavar="NAME", help=names)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 0.7], help="0 is greedy")
    parser.add_argument(
        "--warm-up", choices=("each", "once"), default="each", help="once: for slow models, less steady"
    )
    parser.add_argument("--humaneval", type=Path, default=PROMPTS / "HumanEval.jsonl.gz")
    parser.add_argument("--spec-bench", type=Path, default=PROMPTS / "spec_bench.jsonl")
    return parser


def _measure_pair(name: str, target: Path, draft: Path, arguments: argparse.Namespace) -> None:
    pair = load_pair(str(target), str(draft), dtype=arguments.dtype)
    arms, gguf = build_arms(pair, draft, arguments.arms)
    suites = read_suites(pair, arguments)
    options = bench.BenchOptions(
        temperatures=tuple(arguments.temperatures),
        max_new_tokens=arguments.tokens,
        num_trials=arguments.trials,
        warms_up_once=arguments.warm_up == "once",
    )
    for suite in suites:
        records = measure(pair, arms, suite, options, gguf, arguments.output)
        for temperature, group in itertools.groupby(records, lambda record: record.temperature):
            kind = "greedy" if temperature == 0 else f"temperature {temperature:g}"
            form = "chat template" if suite.is_chat else "raw"
            title = f"{name}, {suite.name} ({form}), {kind}: {len(suite.prompts)} prompts x {arguments.tokens} tokens"
            common.report(table_of(list(group), title), dtype=pair.target.dtype)


def read_suites(pair: Pair, arguments: argparse.Namespace) -> list[Suite]:
    """Read both prompt files, evenly spaced, in the form that the target is to be asked in."""
    files = {"HumanEval": arguments.humaneval, "Spec-Bench": arguments.spec_bench}
    suites = []
    for name, file in files.items():
        if not file.is_file():
            print(f"{name}: left out, there is no {file}", flush=True)
            continue
        is_chat = name != "HumanEval" and bool(getattr(pair.target_tokenizer, "chat_template", None))
        suites.append(Suite(name, bench.spread(bench.read_prompts(file), arguments.prompts), is_chat))
    return suites


def build_arms(pair: Pair, draft: Path, names: Sequence[str]) -> tuple[list[Arm], Pair | None]:
    """Build the named arms, plain decoding first, and the pair with the draft in GGUF where one of them is to run it.

    An arm that cannot be is left out, with the reason.
    """
    arms = bench.build_arms(pair, ["plain", *(name for name in names if name in bench.ARM_NAMES and name != "plain")])
    gguf = None
    if "uag-gguf" in names:
        try:
            gguf = _gguf_pair(pair, draft.with_name(draft.name + ".gguf"))
            arms.append(assisted("uag-gguf", Assistant(gguf.draft, tokenizer=pair.target_tokenizer), pair.target))
        except (UagError, OSError, ImportError) as error:
            print(f"uag-gguf: left out: {' '.join(str(error).split())}", flush=True)
    if "uag-alone" in names:
        arms.append(assisted("uag-alone", Assistant.from_prompt_lookup(pair.target_tokenizer), pair.target))
    return arms, gguf


def _gguf_pair(pair: Pair, file: Path) -> Pair:
    tokenizer, draft = load_tokenizer(str(file)), load_draft(str(file))
    return Pair(pair.target, pair.target_tokenizer, pair.target_name, draft, tokenizer, str(file))


def measure(
    pair: Pair, arms: Sequence[Arm], suite: Suite, options: bench.BenchOptions, gguf: Pair | None, output: Path | None
) -> list[bench.Record]:
    """Measure the prompts of one kind, going on with what the output file has of these settings."""
    journal = None
    if output is not None:
        weights = None if gguf is None else bench.weights_digest(gguf.draft)
        more = {"suite": suite.name, "is_chat": suite.is_chat, "arm_names": [arm.name for arm in arms], "gguf": weights}
        journal = bench.Journal(output, bench.settings_of(pair, options, **more))
        if journal.changed and not {"suite", "target", "draft"} & journal.changed.keys():
            print(f"measured anew, since these settings changed: {journal.changed}", flush=True)
    options = bench.BenchOptions(**{**vars(options), "is_chat": suite.is_chat})
    with bench.Progress(suite.name) as progress:
        found = bench.measure(pair, suite.prompts, options, arms=arms, journal=journal, on_run=progress)
        return list(found)


def table_of(records: Sequence[bench.Record], title: str) -> Table:
    """Lay out what was measured on one kind of prompts, a line for each arm."""
    table = Table(title=title, title_justify="left")
    for index, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="right" if index else "left", no_wrap=True)
    by_arm: dict[str, list[bench.Record]] = {}
    for record in records:
        by_arm.setdefault(record.arm, []).append(record)
    refusals = []
    for summary in bench.summarize(records):
        stats = [record.stats for record in by_arm[summary.arm] if record.stats is not None]
        if summary.refusal is not None or summary.speed_up is None:
            table.add_row(summary.arm, *["-"] * (len(HEADINGS) - 2), "no")
            refusals.append(f"{summary.arm} is not reported: {summary.refusal}")
            continue
        passes = passes_per_candidate(stats)
        num_rounding = summary.num_rounding_differences
        table.add_row(
            summary.arm,
            f"{summary.tokens_per_s:.2f}",
            f"{summary.speed_up:.2f}x",
            f"{summary.tokens_per_target_pass:.2f}",
            "-" if summary.acceptance_rate is None else f"{summary.acceptance_rate:.0%}",
            "-" if not passes else f"{passes:.2f}",
            "yes" if not num_rounding else f"but {num_rounding} roundings",
        )
    table.caption, table.caption_justify = "\n".join(refusals) or None, "left"
    return table


def passes_per_candidate(stats: Sequence[dict[str, Any]]) -> float | None:
    """Return the draft passes for each candidate; None where there was none."""
    num_candidates = sum(found["num_candidate_tokens"] for found in stats)
    return sum(found["num_draft_forwards"] for found in stats) / num_candidates if num_candidates else None


if __name__ == "__main__":
    main()
