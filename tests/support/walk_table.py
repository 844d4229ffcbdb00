"""Writes the table of all classes: `python -m tests.support.walk_table docs/architectures.md` (ten minutes)."""

import argparse
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import torch
import transformers

from tests.support.tiny_classes import class_names
from tests.support.walk import Verdict, examine


def line_of(verdict: Verdict, model_type: str) -> str:
    """Return one line of the table."""
    why = f": {verdict.reason}" if verdict.reason else ""
    cells = (verdict.class_name, model_type, f"**{verdict.kind}**{why}", verdict.independence, verdict.as_draft)
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "/").replace("_", "\\_") for cell in cells) + " |"


def update(page: Path, summary: str, lines: Iterable[str]) -> None:
    """Replace the versions, the summary and the lines of a page's table; the rest of the page is written by hand."""
    versions = rf"transformers {transformers.__version__}\1 PyTorch {torch.__version__.partition('+')[0]}"
    text = re.sub(r"transformers [\w.]+(,| and) PyTorch [\w.]+", versions, page.read_text())
    head, command, _, titles = re.split(r"(```sh\n.*\n```\n\n)(.*\n\n)", text)
    above = "".join(titles.splitlines(keepends=True)[:2])
    page.write_text(f"{head}{command}{summary}\n\n{above}" + "".join(f"{line}\n" for line in lines))


def main() -> None:
    """Examine all classes and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    page = parser.parse_args().page
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    verdicts, types = [], class_names()
    for name in types:
        verdicts.append(examine(name))
        sys.stderr.write(f"{verdicts[-1].kind:10} {name}\n")
    counts = Counter(verdict.kind for verdict in verdicts).most_common()
    drafts = sum(verdict.as_draft == "drafts" for verdict in verdicts)
    independent = sum(verdict.independence == "yes" for verdict in verdicts)
    summary = f"{len(verdicts)} classes: " + ", ".join(f"{n} {kind}" for kind, n in counts)
    summary += f"; {independent} draft-independent; {drafts} draft."
    update(page, summary, (line_of(verdict, types[verdict.class_name]) for verdict in verdicts))


if __name__ == "__main__":
    main()
