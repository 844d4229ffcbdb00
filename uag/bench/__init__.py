"""Benchmarks: the same prompts through every way to generate, compared for equality first and for time second."""

from uag.bench.arms import ARM_NAMES, DEFAULT_ARM_NAMES, build_arms, run_arm
from uag.bench.identity import settings_of, weights_digest
from uag.bench.journal import Journal
from uag.bench.measuring import BenchOptions, Place, measure, num_records
from uag.bench.passes import time_draft_passes, time_passes, timed
from uag.bench.progress import Progress
from uag.bench.prompts import Prompt, heldout_prompts, read_prompts, spread
from uag.bench.record import Record
from uag.bench.report import ArmSummary, save_plot, summarize, summary_table

__all__ = [
    "ARM_NAMES",
    "DEFAULT_ARM_NAMES",
    "ArmSummary",
    "BenchOptions",
    "Journal",
    "Place",
    "Progress",
    "Prompt",
    "Record",
    "build_arms",
    "heldout_prompts",
    "measure",
    "num_records",
    "read_prompts",
    "run_arm",
    "save_plot",
    "settings_of",
    "spread",
    "summarize",
    "summary_table",
    "time_draft_passes",
    "time_passes",
    "timed",
    "weights_digest",
]
