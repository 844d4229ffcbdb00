"""lm-evaluation-harness with a draft: the model type `hf-uag`, whose answers are those of `hf`.

The harness cannot load model types from other packages. This script registers one and runs the harness's own command
line:

    pip install -c constraints.txt -e ".[eval]"
    python examples/lm_eval_harness.py run --model hf-uag --model_args pretrained=TARGET,draft=DRAFT --tasks gsm8k

Only generation (`generate_until`) becomes faster; likelihoods are computed as by `hf`.
"""

from importlib.util import find_spec
from typing import Any

if find_spec("lm_eval") is None:
    raise SystemExit('this example needs lm-evaluation-harness: pip install -c constraints.txt -e ".[eval]"')

from lm_eval.__main__ import cli_evaluate
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM

import uag


@register_model("hf-uag")
class AssistedLM(HFLM):
    """`hf` with a draft.

    Args:
        pretrained: as for `hf`.
        draft: hub name, folder or GGUF file of the draft.
        options: as for `hf`.
    """

    def __init__(self, pretrained: Any, draft: str, **options: Any) -> None:
        super().__init__(pretrained, **options)
        uag.attach(self.model, draft, tokenizer=self.tokenizer)


if __name__ == "__main__":
    cli_evaluate()
