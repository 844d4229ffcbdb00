"""Writes the table of all classes: `python -m tests.support.walk_table docs/architectures.md` (ten minutes)."""

import argparse
import sys
import warnings
from collections import Counter
from pathlib import Path

import torch
import transformers

from tests.support.tiny_classes import class_names
from tests.support.walk import NEW, SHARES, Verdict, examine

_HEAD = """# Every class that generates text

This table covers each class that transformers registers for causal language modeling or for generating text from text,
speech or images, including encoder-decoders. Each class that builds from a tiny configuration generated {new} tokens,
greedy and sampled, alone and in a batch of three, with candidates of which {shares} were correct. Ids and the
generator's final state were compared with plain `generate`.

- **equal**: assisted, and equal in every run; for a batch, the reason for lockstep if there is one.
- **plain**: falls back to plain decoding for the reason given; equal in every run.
- **not built**, **not run**: transformers alone does not build or run the tiny model, for the reason given. These
  classes are not covered.

This table has one configuration of each class. [Configurations of every class](configurations.md) changes each field
that can change how a token depends on others.

As a draft, each class drafted for itself in a batch of three (**drafts**), or is refused with a reason before any work.
A class that falls back to plain decoding as a target drafted for a replay of its own output.

Generated with transformers {transformers} and PyTorch {torch} on a CPU:

```sh
python -m tests.support.walk_table docs/architectures.md
```

{counts}

| class | model type | as a target | as a draft |
|---|---|---|---|
"""


def line_of(verdict: Verdict, model_type: str) -> str:
    """Return one line of the table."""
    why = f": {verdict.reason}" if verdict.reason else ""
    cells = (verdict.class_name, model_type, f"**{verdict.kind}**{why}", verdict.as_draft)
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "/").replace("_", "\\_") for cell in cells) + " |"


def table(verdicts: list[Verdict]) -> str:
    """Return the page."""
    types = class_names()
    counts = Counter(verdict.kind for verdict in verdicts)
    drafts = sum(verdict.as_draft == "drafts" for verdict in verdicts)
    summary = f"{len(verdicts)} classes: " + ", ".join(f"{n} {kind}" for kind, n in counts.most_common())
    head = _HEAD.format(
        new=NEW,
        shares=" or ".join(f"{share:.0%}" for share in SHARES),
        transformers=transformers.__version__,
        torch=torch.__version__.partition("+")[0],
        counts=f"{summary}; {drafts} draft.",
    )
    return head + "\n".join(line_of(verdict, types[verdict.class_name]) for verdict in verdicts) + "\n"


def main() -> None:
    """Examine all classes and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    page = parser.parse_args().page
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    verdicts = []
    for name in class_names():
        verdicts.append(examine(name))
        sys.stderr.write(f"{verdicts[-1].kind:10} {name}\n")
    page.write_text(table(verdicts))


if __name__ == "__main__":
    main()
