"""Benchmarks: run the same prompts in every arm, compare the outputs, and measure times."""

from uag.bench.arms import Arm, assisted, build_arms, is_output
from uag.bench.demo import DEMO_ARM_NAMES, colored, complete, run_demo
from uag.bench.measuring import measure
from uag.bench.prompts import Prompt, heldout_prompts, read_prompts, spread
from uag.bench.ranking import rank
from uag.bench.report import Record, summarize, summary_table
from uag.options import ARM_NAMES, BenchOptions

__all__ = [
    "ARM_NAMES",
    "DEMO_ARM_NAMES",
    "Arm",
    "BenchOptions",
    "Prompt",
    "Record",
    "assisted",
    "build_arms",
    "colored",
    "complete",
    "heldout_prompts",
    "is_output",
    "measure",
    "rank",
    "read_prompts",
    "run_demo",
    "spread",
    "summarize",
    "summary_table",
]
