"""Targets that are compiled, have their own decoding loop, name their head differently, or see pictures."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    BarkCausalModel,
    BarkSemanticConfig,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    HiggsAudioV2Config,
    HiggsAudioV2ForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
)

import uag
from tests.support.calls import (
    GREEDY,
    MODES,
    NEW,
    PROMPTS,
    SAMPLED,
    assert_drafted,
    assistant_of,
    compare,
    left_padded,
    pair,
)
from tests.support.grids import covering
from tests.support.models import spread, tiny_draft
from tests.support.tiny_classes import tiny_config, tiny_options
from tests.support.tokenizers import small_tokenizer
from tests.support.walk import SharedDrafter
from uag.hf.models import head_size


@pytest.mark.slow
def test_graphs_of_plain_decoding_serve_assisted_calls() -> None:
    """The compiler gives up after eight graphs of one function."""
    target = copy.deepcopy(pair()[0])
    target.forward = torch.compile(target.forward, dynamic=True, backend="eager", fullgraph=True)
    inputs = left_padded(PROMPTS[:3])
    expected = target.generate(**inputs, **GREEDY)
    num_graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert uag.Assistant(None).generate(target, **inputs, **GREEDY).tolist() == expected.tolist()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == num_graphs
    assert assistant_of().generate(target, **inputs, **GREEDY).tolist() == expected.tolist()
    torch.compiler.reset()


def test_a_target_with_a_decoding_loop_of_its_own_falls_back_to_plain_decoding() -> None:
    torch.manual_seed(0)
    target = HiggsAudioV2ForConditionalGeneration(tiny_config(HiggsAudioV2Config)).eval()
    given: dict[str, Any] = {"inputs": torch.tensor([[5, 9, 14, 3, 27, 7]]), "max_new_tokens": 5, "do_sample": False}
    (reason,) = compare(target, given, uag.Assistant.from_prompt_lookup()).fallbacks
    assert "its own decoding loop" in reason


@MODES
def test_a_target_whose_head_has_another_name(options: dict[str, Any]) -> None:
    """CLVP's and Bark's heads are not output embeddings; Bark's has fewer scores than its vocabulary has entries."""
    sizes = tiny_options(BarkSemanticConfig(), {"output_vocab_size": 40, "input_vocab_size": 64, "block_size": 128})
    torch.manual_seed(0)
    target = spread(BarkCausalModel(BarkSemanticConfig(**sizes)))
    assert target.get_output_embeddings() is None
    assert head_size(target) == 40
    assert compare(target, left_padded(PROMPTS[:1]) | options).num_accepted_tokens > 0


_TEXT: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip
_VISION: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 8,
    "patch_size": 4,
}  # fmt: skip


def qwen2_vl(size: int) -> tuple[Any, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    vision = {
        "depth": 2, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2,
        "temporal_patch_size": 1, "in_channels": 3, "mlp_ratio": 2,
    }  # fmt: skip
    config = Qwen2VLConfig(
        text_config={"vocab_size": size + 6, "rope_parameters": rope, "bos_token_id": 1, "eos_token_id": None, **_TEXT},
        vision_config=vision,
        image_token_id=size + 1,
        vision_start_token_id=size + 2,
        vision_end_token_id=size + 3,
        video_token_id=size + 4,
    )
    ids = torch.tensor([[5, 9, size + 2] + [size + 1] * 4 + [size + 3, 12, 13, 14]] * 2)
    return spread(Qwen2VLForConditionalGeneration(config)), {
        "input_ids": ids,
        "pixel_values": torch.randn(2, 16, 48),
        "image_grid_thw": torch.tensor([[1, 4, 4]] * 2),
        "mm_token_type_ids": (ids == size + 1).int(),
    }


def gemma3(size: int) -> tuple[Any, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    text = {"vocab_size": size + 6, "head_dim": 8, "sliding_window": 8, "tie_word_embeddings": False, **_TEXT}
    config = Gemma3Config(
        text_config={**text, "layer_types": ["sliding_attention", "full_attention"]},
        vision_config=_VISION,
        mm_tokens_per_image=4,
        image_token_index=size + 1,
        boi_token_index=size + 2,
        eoi_token_index=size + 3,
        tie_word_embeddings=False,
    )
    ids = torch.tensor([[5, 9, size + 2] + [size + 1] * 4 + [size + 3, 12, 13, 14]] * 2)
    return spread(Gemma3ForConditionalGeneration(config)), {
        "input_ids": ids,
        "token_type_ids": (ids == size + 1).long(),
        "pixel_values": torch.randn(2, 3, 8, 8),
    }


@covering("build, num_rows", (qwen2_vl, gemma3), (1, 2), strength=1)
def test_vision_language_targets(build: Callable[[int], Any], num_rows: int) -> None:
    tokenizer = small_tokenizer("byte_level")
    target, inputs = build(len(tokenizer))
    inputs = {name: value[:num_rows] for name, value in inputs.items()}
    if num_rows == 2:
        inputs["input_ids"][1, 0] = 0
    inputs["attention_mask"] = (inputs["input_ids"] != 0).long()
    if "image_grid_thw" in inputs:
        inputs["pixel_values"] = inputs["pixel_values"].reshape(-1, 48)
    draft, draft_tokenizer = tiny_draft("gpt2")
    for mode in (GREEDY, SAMPLED):
        assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=2)
        assert compare(target, inputs | mode, assistant).num_candidate_tokens > 0
        assert_drafted(compare(target, inputs | mode))


def test_placeholder_of_a_video_as_a_candidate_is_not_read_with_the_prompt() -> None:
    size = len(small_tokenizer("byte_level"))
    target, inputs = qwen2_vl(size)
    ids = torch.tensor([[5, 9, size + 2] + [size + 4] * 4 + [size + 3, 12, 13, 14]])
    video = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values_videos": inputs["pixel_values"][0],
        "video_grid_thw": torch.tensor([[1, 4, 4]]),
        "mm_token_type_ids": 2 * (ids == size + 4).int(),
    }
    drafter = SharedDrafter([[size + 4] * NEW], size + 6, share=1.0)
    assistant = uag.Assistant(None, drafter=drafter, num_candidate_tokens=2)
    assert compare(target, video | GREEDY, assistant).num_candidate_tokens > 0
