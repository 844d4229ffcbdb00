"""What is read from a model's modules and configuration."""

from typing import Any

import pytest
import torch
from torch import nn
from transformers import GPT2Config, LlamaConfig, LlavaConfig, PreTrainedConfig, T5Config

from tests.support.models import tiny_model
from uag.hf import blocks, models, weights

UNLIMITED = 1 << 30


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (GPT2Config(n_positions=33), 33),
        (LlavaConfig(text_config=LlamaConfig(max_position_embeddings=55)), 55),
        (T5Config(n_positions=512), UNLIMITED),  # its positions are relative
        (PreTrainedConfig(), UNLIMITED),
        (PreTrainedConfig(max_position_embeddings=-1, n_ctx=12), 12),
    ],
)
def test_max_positions_is_the_first_valid_field_of_the_text_config(config: Any, expected: int) -> None:
    assert models.max_positions(config) == expected


def test_head_size_is_the_heads_or_the_configs_without_a_head() -> None:
    model = tiny_model("llama", 60)
    model.config.vocab_size = 90
    assert models.head_size(model) == 60
    model.lm_head = nn.Identity()
    assert models.head_size(model) == 90


@pytest.mark.parametrize(
    ("attributes", "most_tokens", "has_experts"),
    [
        ([{"expert_capacity": 5, "num_experts": 2}, {"expert_capacity": 3, "num_experts": 1}], 3, True),
        ([{"expert_capacity": 0}], 1, False),
        ([{"expert_capacity": 4, "moe_eval_capacity_token_fraction": 1.0}], None, False),  # set anew in each pass
        ([{"num_experts": 1}, {}], None, False),
    ],
)
def test_routers_limit_a_pass(attributes: list[dict[str, Any]], most_tokens: int | None, has_experts: bool) -> None:
    model = nn.Sequential(*(nn.Identity() for _ in attributes))
    for module, own in zip(model, attributes, strict=True):
        vars(module).update(own)
    assert blocks.most_tokens(model) == most_tokens
    assert blocks.has_experts(model) is has_experts


@pytest.mark.parametrize(("implementation", "most"), [("eager", None), ("grouped_mm", None), ("batched_mm", 4)])
def test_copied_experts_limit_a_pass(implementation: str, most: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("mixtral", 60, num_local_experts=8, num_experts_per_tok=2)
    model.set_experts_implementation(implementation)
    experts = sum(weight.nbytes for weight in model.model.layers[0].mlp.experts.parameters())
    monkeypatch.setattr(blocks, "_MOST_COPIED", experts)
    assert blocks.most_copied(model) == most
    assert blocks.most_copied(tiny_model("llama", 60)) is None


def test_packed_weights_count_with_their_own_size() -> None:
    model = tiny_model("llama", 60)
    size = weights.num_bytes(model)
    packed = model.lm_head.weight.detach().to(torch.uint8)
    model.lm_head.weight = nn.Parameter(packed, requires_grad=False)
    assert weights.num_bytes(model) == size - 3 * packed.numel()
