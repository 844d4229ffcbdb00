"""Train a draft for a target, on texts that the target generates; see docs/distillation.md."""

from uag.distill.run import Result, distill
from uag.distill.writing import Writing

__all__ = ["Result", "Writing", "distill"]
