"""A draft made for a target: the target writes texts, and the draft learns them. Text is what the two share.

    import uag.distill

    result = uag.distill.distill("TARGET", "DRAFT", "prompts.txt", "my-draft")
    print(result.before[0], result.after[0])

Training needs `pip install 'uag[distill]'`; measuring acceptance does not. See docs/distillation.md.
"""

from uag.distill.acceptance import Acceptance, Estimate, measure
from uag.distill.forecast import Forecast, TargetCosts, forecast
from uag.distill.prompts import encode_prompts, read_prompts
from uag.distill.replay import Replay, Replayed
from uag.distill.run import Result, distill
from uag.distill.stage import Writing
from uag.distill.texts import Task, Text, tasks
from uag.distill.training import Training
from uag.distill.writing import BatchWriter

__all__ = [
    "Acceptance",
    "BatchWriter",
    "Estimate",
    "Forecast",
    "Replay",
    "Replayed",
    "Result",
    "TargetCosts",
    "Task",
    "Text",
    "Training",
    "Writing",
    "distill",
    "encode_prompts",
    "forecast",
    "measure",
    "read_prompts",
    "tasks",
]
