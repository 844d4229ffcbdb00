"""Targets that are compiled or quantized, have their own decoding loop, or name their head differently."""

import copy
from typing import Any

import pytest
import torch
from transformers import BarkCausalModel, BarkSemanticConfig, HiggsAudioV2Config, HiggsAudioV2ForConditionalGeneration

import uag
from tests.support.calls import GREEDY, MODES, PROMPTS, assistant_of, compare, left_padded, pair
from tests.support.models import spread
from tests.support.tiny_classes import tiny_config, tiny_options
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
