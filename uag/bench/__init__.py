"""Benchmarks: run the same prompts in every arm, compare the outputs, and measure times."""

from uag.bench.arms import Arm, assisted, build_arms, is_output
from uag.bench.completion import Completion, colored, complete
from uag.bench.drafts import load_pairs, losses
from uag.bench.measuring import measure
from uag.bench.options import ARM_NAMES, BenchOptions
from uag.bench.prompts import Prompt, heldout_prompts, read_prompts, spread
from uag.bench.record import Record, describe_environment, environment_line
from uag.bench.report import by_arm, conclusions, lines, speed, summary_table

__all__ = [
    "ARM_NAMES", "Arm", "BenchOptions", "Completion", "Prompt", "Record", "assisted", "build_arms", "by_arm", "colored",
    "complete", "conclusions", "describe_environment", "environment_line", "heldout_prompts", "is_output", "lines",
    "load_pairs", "losses", "measure", "read_prompts", "speed", "spread", "summary_table",
]  # fmt: skip
