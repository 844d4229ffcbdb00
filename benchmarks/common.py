"""Pairs, prompts, arguments and tables shared by the benchmarks.

Run every script as `python benchmarks/NAME.py`. Pairs of trained models are read from the folder UAG_SHARED (default
../shared) and skipped if it does not exist; the demo pair is always available.
"""

import argparse
import functools
import itertools
import json
import os
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from transformers.utils import logging

from uag import bench
from uag.bench import Arm, describe_environment, environment_line, heldout_prompts, spread
from uag.loading import Pair, demo_folder, load_pair

STORY_PROMPTS = (
    "Once upon a time",
    "Lily and Ben went to the park. They saw",
    "The little dog was sad because",
    "One day, a big bear found a red ball in the forest. He",
    "Tim had a toy car. It was",
    "Sara wanted to bake a cake, but she did not have any",
    '"Mom, can I have a cookie?" asked Tom.',
    "The sun was hot and the bird was",
)
MODELS = Path(os.environ.get("UAG_SHARED", "../shared")).resolve() / "models"
STORIES = ("stories260K", "stories-tok105", "stories-tok361")
Row = dict[str, Any]


class Folders(NamedTuple):
    """A pair that is not loaded yet, with its name in tables and in `--pairs`."""

    name: str
    target: str
    draft: str

    def load(self, **options: Any) -> Pair:
        """Load it; `options` as in `uag.loading.load_pair`."""
        return load_pair(self.target, self.draft, **options)


def demo_and_stories() -> list[Folders]:
    """Return the demo pair and the six ordered pairs of trained stories models (TARGET:DRAFT)."""
    pairs = [Folders("demo", demo_folder("target"), demo_folder("draft"))]
    for target, draft in itertools.permutations(STORIES if MODELS.is_dir() else (), 2):
        pairs.append(Folders(f"{target}:{draft}", str(MODELS / target), str(MODELS / draft)))
    return pairs


def demo_and_python(names: Sequence[str] | None = None) -> list[Folders]:
    """Return the demo pair, the trained Python pair and both crossed (TARGET<-DRAFT), filtered by `names`."""
    targets, drafts = {"demo": demo_folder("target")}, {"demo": demo_folder("draft")}
    if (MODELS / "py-target").is_dir():
        targets["py"], drafts["py"] = str(MODELS / "py-target"), str(MODELS / "py-draft")
    pairs = [Folders(f"{t}<-{d}", targets[t], drafts[d]) for t in targets for d in drafts]
    return [pair for pair in pairs if not names or pair.name in names]


def folders_of(pair: str) -> Folders:
    """Return a pair from its name in `--pairs`: one of `demo_and_python`, or the folders of two models."""
    target, _, draft = pair.partition("<-")
    return (demo_and_python([pair]) or [Folders(f"{Path(target).name}<-{Path(draft).name}", target, draft)])[0]


def python_texts(num_prompts: int) -> list[str]:
    """Return the texts of held-out prompts, evenly spaced."""
    return [prompt.text for prompt in spread(heldout_prompts(), num_prompts)]


def texts_for(pair: Folders, num_prompts: int) -> list[str]:
    """Return prompts that suit a pair: the beginnings of stories, or Python."""
    return list(STORY_PROMPTS[:num_prompts]) if ":" in pair.name else python_texts(num_prompts)


def make_parser(description: str | None, **counts: int) -> argparse.ArgumentParser:
    """Return a parser whose help shows a script's docstring, with the options of `add_options`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, **counts)
    return parser


def add_options(parser: argparse.ArgumentParser, **counts: int) -> None:
    """Add `--output` and an option for each count: `prompt_tokens=128` is `--prompt-tokens`, 128 by default."""
    for name, value in counts.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value, help=f"default {value}")
    parser.add_argument("--output", type=Path, help="JSON lines of the measurements, with commit and versions")


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line, and silence transformers' progress bars and warnings."""
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return arguments


def measure_equal(
    pair: Pair, arms: Sequence[Arm], prompts: Sequence[str], num_tokens: int, num_trials: int
) -> list[bench.Record]:
    """Measure arms interleaved, with greedy decoding; plain decoding is added as the first arm.

    Raises:
        SystemExit: an output differs from plain decoding's, or an arm raised an error.
    """
    options = bench.BenchOptions(max_new_tokens=num_tokens, num_trials=num_trials)
    plain = Arm("plain", pair.target.generate)
    records = list(bench.measure(pair, bench.read_prompts(prompts), options, arms=[plain, *arms]))
    for record in records:
        if record.refusal is not None:
            raise SystemExit(f"{pair.target_name} <- {pair.draft_name}, {record.arm}: {record.refusal}")
    return records


def show(
    arguments: argparse.Namespace,
    title: str,
    columns: Mapping[str, str],
    rows: Iterable[Row],
    *,
    notes: Callable[[list[Row]], Iterable[Table | str]] = lambda _: (),
) -> None:
    """Print each row as soon as it is measured, then a table of all rows; write the rows to `--output`.

    Args:
        arguments: the command line.
        title: the table's title.
        columns: each heading with the `str.format` template of its cells; missing figures are shown as "-".
        rows: the measurements, including `dtype`.
        notes: returns the lines and tables to print below the table.
    """
    table = Table(title=title, title_justify="left")
    for index, heading in enumerate(columns):
        table.add_column(heading, justify="right" if index else "left", no_wrap=True)
    done: list[Row] = []
    for row in rows:
        done.append(row | {"commit": commit()} | describe_environment())
        cells = [_cell(template, row) for template in columns.values()]
        table.add_row(*cells)
        print(*cells, sep="  ", flush=True)
    report(table, *notes(done), dtype=done[0]["dtype"])
    if arguments.output is not None:
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in done)
        arguments.output.write_text("".join(lines), encoding="utf-8")


def _cell(template: str, row: Row) -> str:
    try:
        return template.format(**row)
    except KeyError:
        return "-"


def report(*parts: Table | str, dtype: object) -> None:
    """Print tables and lines, followed by commit, versions and hardware."""
    console = Console(width=160)
    for part in parts:
        console.print(part, highlight=False)
    console.print(f"commit {commit()}; {environment_line(dtype)}", highlight=False, soft_wrap=True)


@functools.cache
def commit() -> str | None:
    """Return the commit of this checkout, with a `+` for uncommitted changes; None outside of one."""
    command = [
        "git",
        "-C",
        str(Path(__file__).parent),
        "describe",
        "--always",
        "--exclude=*",
        "--abbrev=12",
        "--dirty=+",
    ]
    try:
        return subprocess.check_output([*command, "--dirty=+"], stderr=subprocess.DEVNULL, text=True).strip()
    except (OSError, subprocess.CalledProcessError):  # git is missing, or refuses another user's checkout
        return None
