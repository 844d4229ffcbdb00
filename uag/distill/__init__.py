"""Make a draft for a target: the target writes texts, and the draft is trained on them.

    import uag.distill

    result = uag.distill.distill("TARGET", "DRAFT", "my-draft", prompts="prompts.txt")
    print(result.verdict)

Needs the packages accelerate and peft. See docs/distillation.md.
"""

from uag.distill.prompts import Writing
from uag.distill.run import Result, distill
from uag.distill.training import Training

__all__ = ["Result", "Training", "Writing", "distill"]
