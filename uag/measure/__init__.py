"""Measure a draft on texts of its target: its acceptance, and the expected speed of uag with it.

The target generates the texts once (`BatchWriter`). Each draft is then replayed on them (`Replay`), without the target.
`measure_acceptance` counts accepted candidates; `forecast` adds up measured times.
"""

from uag.measure.acceptance import Acceptance, Estimate, measure_acceptance
from uag.measure.forecast import Forecast, TargetCosts, forecast
from uag.measure.replay import Replay, num_equal
from uag.measure.writing import BatchWriter, Text, repetition_penalty

__all__ = [
    "Acceptance",
    "BatchWriter",
    "Estimate",
    "Forecast",
    "Replay",
    "TargetCosts",
    "Text",
    "forecast",
    "measure_acceptance",
    "num_equal",
    "repetition_penalty",
]
