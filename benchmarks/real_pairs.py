"""Real pairs: README's table of results, by one command.

    python benchmarks/real_pairs.py "TARGET<-DRAFT" ... [--dtypes float32 bfloat16] [--tokens 64 256] [--prompts 3]
                                    [--trials 1] [--threads 2] [--file HumanEval.jsonl.gz] [--output FILE]
    python benchmarks/real_pairs.py --readme FILE

TARGET is the folder of a model, DRAFT a folder or a GGUF file; demo<-demo is the bundled pair. The arms are those of
`uag bench` that the table shows, in turns in one process, and every output is compared. --arms can add llama.cpp, if
there is a file TARGET.gguf: it computes the target differently, so its output may differ.

Each pair, dtype and number of tokens appends a JSON line for each arm to --output (benchmarks/results/DATE.jsonl), and
the table of the whole file is printed in Markdown. --readme writes the table of a file into README.md; a test checks
that it is that of the last file in benchmarks/results.
"""

import argparse
import datetime
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import baselines
import common
import torch

from uag import bench
from uag.errors import UagError
from uag.loading import Pair

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
HUMANEVAL = common.MODELS.parent / "prompts" / "HumanEval.jsonl.gz"
COLUMNS = {
    "transformers": "transformers", "uag-no-draft": "uag, no draft", "uag-lookup": "lookup alone",
    "uag-draft": "draft alone", "uag": "uag", "uag-useless": "useless draft",
}  # fmt: skip
TABLE = re.compile(r"^\| dtype \| target <- draft \|.*\n(?:\|.*\n)+(?:\n\*Measured.*\n)?", flags=re.MULTILINE)
"""The table in README.md, and the line below it."""


def main() -> None:
    """Measure all pairs and print the table, or write that of a file into README.md."""
    arguments = common.parse(_parser())
    if arguments.readme is not None:
        page = ROOT / "README.md"
        text = page.read_text(encoding="utf-8")
        page.write_text(TABLE.sub(lambda _: markdown(read(arguments.readme)), text, count=1), encoding="utf-8")
        return
    torch.set_num_threads(arguments.threads)
    output = arguments.output or RESULTS / f"{datetime.date.today().isoformat()}.jsonl"
    output.parent.mkdir(exist_ok=True)
    file = arguments.file if arguments.file.is_file() else None
    prompts = bench.spread(bench.read_prompts(file) if file else bench.heldout_prompts(), arguments.prompts)
    for name, dtype in itertools.product(arguments.pairs, arguments.dtypes):
        folders = common.folders_of(name)
        pair = folders.load(dtype=dtype)
        for num_tokens in arguments.tokens:
            arms = list(_arms(pair, folders, arguments.arms))  # new assistants, which have learned nothing yet
            options = bench.BenchOptions(max_new_tokens=num_tokens, num_trials=arguments.trials)
            found = bench.conclusions(list(bench.measure(pair, prompts, options, arms=arms)))
            row = {"pair": folders.name, "dtype": dtype, "num_tokens": num_tokens, "num_prompts": len(prompts)}
            row |= {"prompts": file.name if file else "held-out Python", "commit": common.commit()}
            with output.open("a", encoding="utf-8") as lines:
                lines.writelines(json.dumps(row | arm | bench.describe_environment()) + "\n" for arm in found["arms"])
            print(folders.name, dtype, f"{num_tokens} tokens:", *bench.lines(found), sep="\n  ", flush=True)
    print(f"\n{output}:\n\n{markdown(read(output))}")


def _parser() -> argparse.ArgumentParser:
    parser = common.make_parser(__doc__, prompts=3, trials=1, threads=os.cpu_count() or 1)
    parser.add_argument("pairs", nargs="*", default=["demo<-demo"], metavar="TARGET<-DRAFT")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--tokens", nargs="+", type=int, default=[64, 256])
    names = ("plain", *COLUMNS)
    parser.add_argument("--arms", nargs="+", choices=(*names, "llama.cpp"), default=names, metavar="NAME")
    parser.add_argument(
        "--file", type=Path, default=HUMANEVAL, help="prompts; default: HumanEval, else held-out Python"
    )
    parser.add_argument("--readme", type=Path, help="write the table of this file into README.md, and measure nothing")
    return parser


def _arms(pair: Pair, folders: common.Folders, names: Sequence[str]) -> Iterator[bench.Arm]:
    """Yield the arms; print why one cannot run here."""
    yield from bench.build_arms(pair, bench.BenchOptions(arm_names=tuple(set(names) - {"llama.cpp"})))
    file = Path(f"{folders.target}.gguf")
    try:
        if "llama.cpp" in names and file.is_file():
            yield baselines.build_baseline(pair.target, "llama.cpp", str(file))
    except (UagError, OSError, ImportError) as error:
        print(f"llama.cpp: skipped: {' '.join(str(error).split())}", flush=True)


def read(path: Path) -> list[common.Row]:
    """Return the rows of a file: one for each pair, dtype, number of tokens and arm."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def markdown(rows: Iterable[common.Row]) -> str:
    """Return the table of some rows in Markdown, with a line that names machine, instruction set and commit.

    A cell has a value for each number of new tokens.
    """
    calls: dict[tuple[str, str], dict[int, dict[str, common.Row]]] = {}
    for row in rows:
        by_tokens = calls.setdefault((row["dtype"], row["pair"]), {})
        by_tokens.setdefault(row["num_tokens"], {})[row["arm"]] = row
    headings = ["dtype", "target <- draft", "plain, tokens/s", *COLUMNS.values(), "drafting"]
    lines = [headings, ["---"] * len(headings)]
    for (dtype, pair), by_tokens in calls.items():
        of_tokens = zip(*(_cells(arms) for arms in by_tokens.values()), strict=True)
        lines.append([dtype, pair.replace("<-", " <- "), *(" / ".join(cells) for cells in of_tokens)])
    lines = [[re.sub(r"^-( / -)*$", "-", cell) for cell in line] for line in lines]
    plain, numbers = next(reversed(by_tokens.values()))["plain"], " / ".join(map(str, by_tokens))
    hardware, versions = plain["hardware"], plain["versions"]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + (
        f"\n*Measured: {numbers} new tokens, {plain['num_prompts']} prompts of {plain['prompts']}, greedy, in turns; "
        f"commit {plain['commit']}, kernels {hardware['kernels'] or 'off'}, {hardware['processor']}, "
        f"{hardware['num_threads']} threads, PyTorch {versions['torch']}, transformers {versions['transformers']}.*\n"
    )


def _cells(arms: dict[str, common.Row]) -> list[str]:
    """Return what the calls of one length were: tokens per second of plain decoding, speeds, and what a draft adds."""
    speeds = [arms.get(name, {}).get("speed_up") for name in COLUMNS]
    best = max((speed for speed in speeds if speed), default=None)
    cells = ["-" if speed is None else f"**{speed:.2f}**" if speed == best else f"{speed:.2f}" for speed in speeds]
    over = arms.get("uag", {}).get("over_no_draft")
    return [f"{arms['plain']['tokens_per_s']:.1f}", *cells, f"{over:.2f}" if over else "-"]


if __name__ == "__main__":
    main()
