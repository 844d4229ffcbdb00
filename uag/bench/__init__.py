"""Benchmarks: run the same prompts in every arm, compare the outputs, and measure times."""

from uag.bench.arms import ARM_NAMES, DEFAULT_ARM_NAMES, Arm, assisted, build_arms, run_arm, without_draft
from uag.bench.measuring import BenchOptions, measure
from uag.bench.prompts import Prompt, heldout_prompts, read_prompts, spread
from uag.bench.record import Record
from uag.bench.report import ArmSummary, summarize, summary_table

__all__ = [
    "ARM_NAMES",
    "DEFAULT_ARM_NAMES",
    "Arm",
    "ArmSummary",
    "BenchOptions",
    "Prompt",
    "Record",
    "assisted",
    "build_arms",
    "heldout_prompts",
    "measure",
    "read_prompts",
    "run_arm",
    "spread",
    "summarize",
    "summary_table",
    "without_draft",
]
