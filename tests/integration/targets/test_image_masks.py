"""Targets with image masks in `generate`: masks with or without a text axis, and prompts of embeddings."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import Phi4MultimodalConfig, Phi4MultimodalForCausalLM

import uag
from tests.support.calls import GREEDY, SAMPLED, OracleDrafter, assert_drafted, compare
from tests.support.class_options import inputs_of
from tests.support.models import spread
from tests.support.tiny_classes import tiny_of_class

_IMAGE, _AUDIO = 290, 291


def phi4() -> tuple[Any, dict[str, torch.Tensor]]:
    """Build a target whose image mask is [images, crops, patches high, patches wide]."""
    config = Phi4MultimodalConfig(
        vocab_size=300, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, original_max_position_embeddings=256, bos_token_id=1,
        eos_token_id=None, pad_token_id=0,
        vision_config={
            "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
            "image_size": 28, "patch_size": 14, "crop_size": 28, "image_token_id": _IMAGE,
        },
        audio_config={
            "num_blocks": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16,
            "depthwise_separable_out_channel": 16, "nemo_conv_channels": 16, "audio_token_id": _AUDIO,
        },
    )  # fmt: skip
    torch.manual_seed(0)
    target = spread(Phi4MultimodalForCausalLM(config))
    ids = torch.tensor([[5, 9] + [_IMAGE] * 5 + [12, 13, 14]] * 2)
    ids[1, 0] = 0
    return target, {
        "input_ids": ids, "attention_mask": (ids != 0).long(), "image_pixel_values": torch.randn(2, 2, 3, 28, 28),
        "image_sizes": torch.tensor([[28, 28]] * 2), "image_attention_mask": torch.ones(2, 2, 2, 2),
    }  # fmt: skip


@pytest.mark.parametrize("mode", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("num_rows", [1, 2])
def test_a_mask_over_crops_does_not_follow_the_text(num_rows: int, mode: dict[str, Any]) -> None:
    target, inputs = phi4()
    inputs = {name: value[:num_rows] for name, value in inputs.items()}
    assert_drafted(compare(target, inputs | mode))


@pytest.mark.parametrize("mode", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("num_rows", [1, 2])
def test_a_mask_over_images_beside_embeddings_covers_the_block(num_rows: int, mode: dict[str, Any]) -> None:
    """Idefics trims its mask to the tokens of a pass only if the prompt was passed as ids."""
    target = tiny_of_class("IdeficsForVisionText2Text")
    inputs = inputs_of("idefics", num_rows)
    inputs["inputs_embeds"] = target.get_input_embeddings()(inputs.pop("input_ids")).detach()
    inputs["attention_mask"][0, 0] = 0  # since 5.23 a mask of ones is dropped, and the image's is then not extended
    assert_drafted(compare(target, inputs | mode))


@pytest.mark.parametrize("has_image", [True, False], ids=["image", "text alone"])
def test_attentions_to_an_image_are_recorded_whole(has_image: bool) -> None:
    """Mllama's cross-attention layers are interleaved with the others; without an image, they are skipped."""
    target = tiny_of_class("MllamaForConditionalGeneration")
    target.set_attn_implementation("eager")
    inputs = inputs_of("mllama", 2)
    if not has_image:
        inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    given: dict[str, Any] = inputs | GREEDY | {"return_dict_in_generate": True, "output_attentions": True}
    expected = target.generate(**given)
    drafter = OracleDrafter(expected.sequences[:, 6:].tolist(), 300)
    assistant = uag.Assistant(None, drafter=drafter, num_candidate_tokens=4)
    found = assistant.generate(target, **given)
    assert found.sequences.tolist() == expected.sequences.tolist()
    assert assistant.stats.num_accepted_tokens > 0
    assert len(found.attentions) == len(expected.attentions)
    for ours, plain in zip(found.attentions, expected.attentions, strict=True):
        assert len(ours) == len(plain) == (3 if has_image else 2)
        for mine, other in zip(ours, plain, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


class _Marking(OracleDrafter):
    """Proposes the target's output, with an image id in place of every third id."""

    def _id(self, row: int, place: int) -> int:
        return _IMAGE if place % 3 == 2 else self.outputs[row][place]


@pytest.mark.parametrize("num_rows", [1, 2])
def test_a_candidate_that_marks_an_image_is_rejected(num_rows: int) -> None:
    """Phi-4 gets its images at every pass, and locates their placeholders among the ids."""
    target, inputs = phi4()
    inputs = {name: value[:num_rows] for name, value in inputs.items()}
    expected = target.generate(**inputs, **GREEDY)
    drafter = _Marking(expected[:, 10:].tolist(), 300)
    assistant = uag.Assistant(None, drafter=drafter, num_candidate_tokens=4)
    assert_drafted(compare(target, inputs | GREEDY, assistant))
