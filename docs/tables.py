"""Write the table of docs/architectures.md.

python docs/tables.py architectures                    (all columns but the last; ten minutes)
python docs/tables.py configurations --record FILE     (the last one; hours; sweeps the classes that FILE lacks)
"""

import argparse
import json
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import transformers

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architectures.md"
sys.path.insert(0, str(ROOT))

from tests.support import configurations, walk  # noqa: E402
from tests.support.tiny_classes import class_names  # noqa: E402


def update(summary: str, columns: slice, found: Mapping[str, Sequence[str]]) -> None:
    """Replace columns of the table by those of each class, the line that begins as a summary, and the versions.

    The rest of the page is written by hand. Columns are counted after the class's name.
    """
    text = PAGE.read_text()
    versions = f"transformers {transformers.__version__} and PyTorch {torch.__version__.partition('+')[0]}"
    text = re.sub(r"transformers [\w.]+ and PyTorch [\w.]+", versions, text)
    text = re.sub(rf"^{summary.partition(' ')[0]} .*$", summary, text, flags=re.MULTILINE)
    above, titles, table = re.split(r"(\| class \|.*\n.*\n)", text)
    rows = {name: cells for name, *cells in (line[2:-2].split(" | ") for line in table.splitlines())}
    rows = {name: rows.get(name, [""] * 5) for name in sorted({*rows, *found})}
    for name, cells in found.items():
        rows[name][columns] = [" ".join(cell.split()).replace("|", "/").replace("_", "\\_") for cell in cells]
    PAGE.write_text(above + titles + "".join(f"| {' | '.join([name, *rows[name]])} |\n" for name in rows))


def architectures() -> None:
    """Examine all classes and write the page."""
    verdicts, types = [], class_names()
    for name in types:
        verdicts.append(walk.examine(name))
        sys.stderr.write(f"{verdicts[-1].kind:10} {name}\n")
    counts = Counter(verdict.kind for verdict in verdicts).most_common()
    drafts = sum(verdict.as_draft == "drafts" for verdict in verdicts)
    independent = sum(verdict.independence == "yes" for verdict in verdicts)
    summary = f"Classes: {len(verdicts)}; as targets " + ", ".join(f"{n} {kind}" for kind, n in counts)
    summary += f"; {independent} draft-independent; {drafts} draft."
    update(summary, slice(0, 4), {shown(each.class_name): cells(each, types[each.class_name]) for each in verdicts})


def cells(verdict: walk.Verdict, model_type: str) -> list[str]:
    """Return the columns that the walk over all classes fills."""
    why = f": {verdict.reason}" if verdict.reason else ""
    return [model_type, f"**{verdict.kind}**{why}", verdict.independence, verdict.as_draft]


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
    summary = f"Configurations: {total.total()} calls; {words(total)}."
    update(summary, slice(4, 5), {shown(name): [words(each)] for name, each in by_class.items()})


def words(counts: Counter[str]) -> str:
    """Return counts in words, without zeros."""
    kinds = {kind: kind.removeprefix("equal, ").lower() for kind in configurations.KINDS}
    return ", ".join(f"{counts[kind]} {name}" for kind, name in kinds.items() if counts[kind])


def shown(name: str) -> str:
    """Return the name of a class as the table has it."""
    return name.replace("_", "\\_")


def main() -> None:
    """Write columns of the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("columns", choices=("architectures", "configurations"))
    parser.add_argument("--record", type=Path, default="sweep.jsonl", help="one line of JSON for each finished class")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), metavar=("INDEX", "PARTS"))
    parser.add_argument("--pairs", type=int, default=10, help="drawn pairs of a class")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    if given.columns == "architectures":
        architectures()
    else:
        sweep(given.record, given.seconds, given.part, given.pairs)


if __name__ == "__main__":
    main()
