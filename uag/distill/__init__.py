"""Train a draft for a target, on texts that the target generates; see docs/distillation.md."""

from uag.distill.run import Result, distill

__all__ = ["Result", "distill"]
