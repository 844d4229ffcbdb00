"""Benchmarks: run the same prompts in every arm, compare the outputs, and measure times."""

from uag.bench.arms import Arm, assisted, build_arms, is_output
from uag.bench.completion import Completion, colored, complete
from uag.bench.measuring import measure
from uag.bench.prompts import Prompt, heldout_prompts, read_prompts, spread
from uag.bench.ranking import advice, rank
from uag.bench.report import ArmSummary, Record, summarize, summary_table, verdict
from uag.options import ARM_NAMES, BenchOptions

__all__ = [
    "ARM_NAMES", "Arm", "ArmSummary", "BenchOptions", "Completion", "Prompt", "Record", "advice", "assisted",
    "build_arms", "colored", "complete", "heldout_prompts", "is_output", "measure", "rank", "read_prompts",
    "spread", "summarize", "summary_table", "verdict",
]  # fmt: skip
