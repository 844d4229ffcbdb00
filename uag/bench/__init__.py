"""Benchmarks: run the same prompts in every arm, compare the outputs, and measure times."""

from uag.bench.arms import ARM_NAMES, Arm, assisted, build_arms, run_arm, without_draft
from uag.bench.completion import Completion, complete
from uag.bench.demo import DEMO_ARM_NAMES, Demo, colored, run_demo
from uag.bench.measuring import BenchOptions, measure
from uag.bench.prompts import Prompt, heldout_prompts, read_prompts, spread
from uag.bench.ranking import Ranking, rank
from uag.bench.report import ArmSummary, Record, summarize, summary_table

__all__ = [
    "ARM_NAMES",
    "DEMO_ARM_NAMES",
    "Arm",
    "ArmSummary",
    "BenchOptions",
    "Completion",
    "Demo",
    "Prompt",
    "Ranking",
    "Record",
    "assisted",
    "build_arms",
    "colored",
    "complete",
    "heldout_prompts",
    "measure",
    "rank",
    "read_prompts",
    "run_arm",
    "run_demo",
    "spread",
    "summarize",
    "summary_table",
    "without_draft",
]
