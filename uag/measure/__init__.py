"""Measure a draft on texts of its target.

The target generates the texts once (`BatchWriter`). Each draft is then replayed on them (`Replay`), without the target.
"""

from uag.measure.replay import Replay, num_equal
from uag.measure.writing import BatchWriter, Text

__all__ = [
    "BatchWriter",
    "Replay",
    "Text",
    "num_equal",
]
