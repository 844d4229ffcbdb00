"""Train a draft for a target, on texts that the target generates.

    import uag.distill

    result = uag.distill.distill("TARGET", "DRAFT", "my-draft", prompts="prompts.txt")
    print(result.verdict)

Needs the package accelerate. See docs/distillation.md.
"""

from uag.distill.prompts import Writing
from uag.distill.run import Result, distill

__all__ = ["Result", "Writing", "distill"]
