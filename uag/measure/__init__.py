"""Measure the acceptance of a draft on texts of its target.

The target generates the texts once (`BatchWriter`). Each draft is then replayed on them (`Replay`), without the target,
and `measure_acceptance` counts accepted candidates.
"""

from uag.measure.acceptance import Acceptance, measure_acceptance
from uag.measure.replay import Replay, num_equal
from uag.measure.writing import BatchWriter, Text, repetition_penalty

__all__ = [
    "Acceptance",
    "BatchWriter",
    "Replay",
    "Text",
    "measure_acceptance",
    "num_equal",
    "repetition_penalty",
]
