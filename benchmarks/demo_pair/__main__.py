"""Train the bundled demo pair: a deep target and a shallow draft with another tokenizer, on CPU.

The target is grown: a shallow stack is trained first, then every layer is doubled, twice, since a pass at batch 1 costs
time per layer while training costs time per weight. The draft learns the library first and is then distilled:
`examples/distill.py` lets the target write, and the draft learns that.

    python -m benchmarks.demo_pair --out uag/demo --work /tmp/demo-work                # everything
    python -m benchmarks.demo_pair --out /tmp/demo --work /tmp/demo-work --scale 0.05  # a smoke run

Stages (`--stage`) can be run alone, in this order; each continues from its last checkpoint in `--work`.
The same Python, package versions and thread count give the same target; the Unigram trainer gives other scores each
time, so drafts differ a little.
"""

import argparse
import logging
import sys
from pathlib import Path

import torch

from benchmarks.demo_pair.measure import measure_stage
from benchmarks.demo_pair.package import package_stage
from benchmarks.demo_pair.stages import distill_stage, draft_stage, target_stage
from benchmarks.demo_pair.vocabularies import tokenizers_stage


def main() -> None:
    """Run the stages."""
    parser = argparse.ArgumentParser(
        "benchmarks.demo_pair", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("uag/demo"), help="where the package data goes")
    parser.add_argument("--work", type=Path, required=True, help="folder for checkpoints, outside the repository")
    parser.add_argument("--stage", default="all")
    parser.add_argument("--scale", type=float, default=1.0, help="share of all training steps and texts")
    parser.add_argument("--threads", type=int, default=2, help="torch threads; another number rounds differently")
    arguments = parser.parse_args()
    work, out, scale = arguments.work, arguments.out, arguments.scale
    stages = {
        "tokenizers": lambda: tokenizers_stage(work),
        "target": lambda: target_stage(work, scale),
        "draft": lambda: draft_stage(work, scale),
        "distill": lambda: distill_stage(work, scale),
        "package": lambda: package_stage(work, out),
        "measure": lambda: measure_stage(out),
    }
    if arguments.stage not in ("all", *stages):
        parser.error(f"--stage is {arguments.stage!r}, it must be all or one of {', '.join(stages)}")
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    torch.set_num_threads(arguments.threads)
    work.mkdir(parents=True, exist_ok=True)
    for name in stages if arguments.stage == "all" else [arguments.stage]:
        logging.getLogger(__name__).info("-- %s", name)
        stages[name]()


if __name__ == "__main__":
    main()
