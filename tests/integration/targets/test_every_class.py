"""Every text-generation class of transformers equals plain decoding or falls back to it, without errors.

The walk over all of them is slow: `pytest -m slow tests/integration/targets/test_every_class.py`.
"""

from typing import Any

import pytest
import torch

from tests.support.tiny_classes import class_names
from tests.support.walk import examine

SAMPLE = {
    "CohereAsrForConditionalGeneration": "",  # speech
    "DeepseekV3ForCausalLM": "",  # latent attention, experts
    "Gemma3nForCausalLM": "",  # layers that share their cache
    "Gemma4ForCausalLM": "",
    "GitForCausalLM": "",
    "IdeficsForVisionText2Text": "takes 'image_attention_mask' in every pass",  # images at every pass
    "Kosmos2_5ForConditionalGeneration": "rows advance in lockstep",  # its positions do not reach the forward
    "MllamaForConditionalGeneration": "keeps the keys of an image",  # cross-attention and self-attention
    "UdopForConditionalGeneration": "",  # boxes
    "VisionEncoderDecoderModel": "",
    "XLNetLMHeadModel": "",
}
"""Maps a class to a part of the reasons for plain decoding or lockstep, where the test asks for one."""


def check(class_name: str, reason: str = "", **options: Any) -> None:
    verdict = examine(class_name, **options)
    if verdict.kind in ("not built", "not run"):
        pytest.skip(f"transformers alone: {verdict.reason}")
    assert verdict.kind in ("equal", "plain"), verdict
    assert verdict.kind == "equal" or "plain decoding" in verdict.reason, verdict
    assert reason in verdict.reason, verdict
    assert not verdict.as_draft.startswith("error"), verdict
    if verdict.kind == "equal":
        mostly_right, mostly_wrong = verdict.acceptance
        assert mostly_wrong < mostly_right


SLOW = ("Gemma3nForCausalLM", "Kosmos2_5ForConditionalGeneration")
"""Classes of the sample whose tiny models take long to build."""


@pytest.mark.parametrize(
    "class_name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in SAMPLE]
)
def test_a_sample(class_name: str) -> None:
    if class_name not in class_names():
        pytest.skip("not in this release")
    check(class_name, SAMPLE[class_name], num_calls=2, dtypes=(torch.float32,))


@pytest.mark.slow
@pytest.mark.parametrize("class_name", [name for name in class_names() if name not in SAMPLE])
def test_all_others(class_name: str) -> None:
    check(class_name)
