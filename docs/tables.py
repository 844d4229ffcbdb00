"""Write the tables of docs/architectures.md and docs/configurations.md.

python docs/tables.py architectures                    (ten minutes)
python docs/tables.py configurations --record FILE     (hours; sweeps the classes that FILE lacks)
"""

import argparse
import json
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import torch
import transformers

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support import configurations, walk  # noqa: E402
from tests.support.tiny_classes import class_names  # noqa: E402


def update(page: str, summary: str, lines: Iterable[str]) -> None:
    """Replace the versions, the summary and the lines of a page's table; the rest of the page is written by hand."""
    file = ROOT / "docs" / f"{page}.md"
    versions = rf"transformers {transformers.__version__}\1 PyTorch {torch.__version__.partition('+')[0]}"
    text = re.sub(r"transformers [\w.]+(,| and) PyTorch [\w.]+", versions, file.read_text())
    head, command, _, titles = re.split(r"(```sh\n.*\n```\n\n)(.*\n\n)", text)
    above = "".join(titles.splitlines(keepends=True)[:2])
    file.write_text(f"{head}{command}{summary}\n\n{above}" + "".join(f"| {line} |\n" for line in lines))


def line_of(verdict: walk.Verdict, model_type: str) -> str:
    """Return one line of the table of classes."""
    why = f": {verdict.reason}" if verdict.reason else ""
    cells = (verdict.class_name, model_type, f"**{verdict.kind}**{why}", verdict.independence, verdict.as_draft)
    return " | ".join(" ".join(cell.split()).replace("|", "/").replace("_", "\\_") for cell in cells)


def architectures() -> None:
    """Examine all classes and write the page."""
    verdicts, types = [], class_names()
    for name in types:
        verdicts.append(walk.examine(name))
        sys.stderr.write(f"{verdicts[-1].kind:10} {name}\n")
    counts = Counter(verdict.kind for verdict in verdicts).most_common()
    drafts = sum(verdict.as_draft == "drafts" for verdict in verdicts)
    independent = sum(verdict.independence == "yes" for verdict in verdicts)
    summary = f"{len(verdicts)} classes: " + ", ".join(f"{n} {kind}" for kind, n in counts)
    summary += f"; {independent} draft-independent; {drafts} draft."
    update("architectures", summary, (line_of(verdict, types[verdict.class_name]) for verdict in verdicts))


def swept(record: Path) -> dict[str, Counter[str]]:
    """Return the counts of each class in a record."""
    lines = record.read_text().splitlines() if record.exists() else []
    return {name: Counter(counts) for name, counts in sorted(map(json.loads, lines))}


def sweep(record: Path, seconds: float, part: tuple[int, int], num_pairs: int) -> None:
    """Sweep the classes that the record lacks, and write the page."""
    end = time.monotonic() + seconds
    for name in list(class_names())[part[0] :: part[1]]:
        if name in swept(record) or time.monotonic() > end:
            continue
        counts: Counter[str] = Counter()
        for _, options, kind, reason in configurations.sweep(name, 0, num_pairs):
            counts[kind] += 1
            if kind in ("DIFFERENT", "refused"):
                sys.stderr.write(f"{kind} {name} {options} {reason}\n")
        with record.open("a") as lines:
            lines.write(json.dumps([name, counts]) + "\n")
    by_class = swept(record)
    total = sum(by_class.values(), Counter())
    kinds = ", ".join(f"{total[kind]} {kind.lower()}" for kind in configurations.KINDS)
    rows = ([name, each.total(), *(each[kind] for kind in configurations.KINDS)] for name, each in by_class.items())
    summary = f"{total.total()} calls of {len(by_class)} classes: {kinds}."
    update("configurations", summary, (" | ".join(map(str, row)) for row in rows))


def main() -> None:
    """Write one of the two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=("architectures", "configurations"))
    parser.add_argument("--record", type=Path, default="sweep.jsonl", help="one line of JSON for each finished class")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), metavar=("INDEX", "PARTS"))
    parser.add_argument("--pairs", type=int, default=10, help="drawn pairs of a class")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    if given.table == "architectures":
        architectures()
    else:
        sweep(given.record, given.seconds, given.part, given.pairs)


if __name__ == "__main__":
    main()
