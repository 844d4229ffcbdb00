"""The families of models whose passes as drafts run in one call, and those that are left to PyTorch with a sentence."""

from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.support.models import STATEFUL, tiny_model
from uag.hf.decoder import describe
from uag.kernels import Cache, Decoder, decoder_of, kernel

pytestmark = pytest.mark.skipif(not kernel.LEVEL, reason="the kernels were not compiled here")

NUM_IDS, VOCAB_SIZE = 40, 199
_IDS = {"vocab_size": VOCAB_SIZE, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_BASE = {
    **_IDS, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 128,
}  # fmt: skip
_KV = {**_BASE, "num_key_value_heads": 2}
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("llama", _KV),
    "Llama 3.2": ("llama", {**_KV, "rope_parameters": _LLAMA3, "tie_word_embeddings": True}),
    "Llama with biases": ("llama", {**_KV, "attention_bias": True, "mlp_bias": True}),
    "SmolLM3": ("smollm3", _KV),
    "Qwen2": ("qwen2", _KV),
    "Qwen3": ("qwen3", {**_KV, "head_dim": 32}),
    "Gemma": ("gemma", {**_KV, "head_dim": 16}),
    "Gemma 2": ("gemma2", {**_KV, "head_dim": 16, "sliding_window": 8}),
    "Gemma 3": ("gemma3_text", {**_KV, "head_dim": 16, "sliding_window": 8}),
    "GPT-2": ("gpt2", {**_IDS, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128}),
    "GPT-NeoX": ("gpt_neox", _BASE),
    "GPT-NeoX, sequential": ("gpt_neox", {**_BASE, "use_parallel_residual": False}),
    "OPT": (
        "opt",
        {key: value for key, value in _BASE.items() if key != "intermediate_size"}
        | {"ffn_dim": 96, "word_embed_proj_dim": 64},
    ),
    "Phi": ("phi", _BASE),
    "Phi-3": ("phi3", _KV),
    "Mistral": ("mistral", {**_KV, "sliding_window": 8}),
    "Granite": (
        "granite",
        {**_KV, "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "logits_scaling": 2.0}
        | {"attention_multiplier": 0.2},
    ),
    "OLMo 2": ("olmo2", _KV),
    "StarCoder2": ("starcoder2", _KV),
    "StableLM": ("stablelm", _KV),
    "StableLM, parallel": ("stablelm", {**_KV, "use_parallel_residual": True}),
}
LEFT: dict[str, tuple[str, dict[str, Any], str]] = {
    **{name: (*of_type, "keeps a state") for name, of_type in STATEFUL.items()},
    "Falcon": ("falcon", {"new_decoder_architecture": True, "ffn_hidden_size": 128}, "has no self_attn"),
    "Bloom": ("bloom", {}, "has no self_attn"),
    "Cohere": ("cohere", {}, "rotates neighboring numbers"),
    "GLM": ("glm", {}, "not show"),
    "Mixtral": ("mixtral", {}, "has no"),
    "Qwen2 MoE": ("qwen2_moe", {}, "has no"),
    "T5": ("t5", {}, "encoder-decoder"),
}


def tiny(name: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    """Build a model whose norms, biases and scales all matter."""
    model_type, options = FAMILIES[name]
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[model_type](**options), dtype=dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.2)
            else:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def logits_of(decoder: Decoder, ids: list[int]) -> torch.Tensor:
    """Read ids in blocks, the first of which fills the windows."""
    row = Cache(decoder, 1)
    return torch.cat([decoder.run(row, [ids[at : at + 11]], 11) for at in range(0, len(ids), 11)])


def expected_of(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([ids])).logits[0].float()
    return logits


def shared_mass(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(torch.minimum(one.softmax(-1), other.softmax(-1)).sum(-1).mean())


IN_HALF = ("Llama", "Gemma 2", "GPT-2")
"""Families that run in bfloat16 by default; float32 has the narrower bounds."""


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(
            name, dtype, marks=() if dtype is torch.float32 or name in IN_HALF else pytest.mark.grid,
            id=f"{name}-{str(dtype).removeprefix('torch.')}",
        )
        for name in FAMILIES
        for dtype in (torch.float32, torch.bfloat16)
    ],
)  # fmt: skip
def test_a_described_family_drafts_in_one_call(name: str, dtype: torch.dtype) -> None:
    model = tiny(name, dtype)
    found = decoder_of(model, "int8")
    assert isinstance(found, Decoder), found
    ids = torch.randint(VOCAB_SIZE, (NUM_IDS,), generator=torch.Generator().manual_seed(8)).tolist()
    expected = expected_of(model, ids)
    exact = logits_of(Decoder(describe(model), "model"), ids)
    # Keys and values are rounded to float16, and the model's own operations to its dtype.
    error, least = (0.002, 0.998) if dtype is torch.float32 else (0.05, 0.95)
    assert (exact - expected).square().mean().sqrt() < error * expected.std()
    assert shared_mass(exact, expected) > least
    assert shared_mass(logits_of(found, ids), exact) > 0.9


@pytest.mark.parametrize("name", LEFT)
def test_other_families_are_left_to_pytorch(name: str) -> None:
    model_type, options, reason = LEFT[name]
    model = tiny_model(model_type, VOCAB_SIZE, **options)
    found = decoder_of(model, "int8")
    assert isinstance(found, str)
    assert reason in found


class Halved(transformers.models.llama.modeling_llama.LlamaMLP):
    """An MLP whose modules do not show what it computes."""

    def forward(self, x: Any) -> Any:
        return 0.5 * super().forward(x)


class Twice(transformers.LlamaForCausalLM):
    def forward(self, *arguments: Any, **options: Any) -> Any:
        output = super().forward(*arguments, **options)
        output.logits = 2 * output.logits
        return output


@pytest.mark.parametrize("part", ["a block", "the model", "a hook", "a function of one module"])
def test_a_forward_that_the_modules_do_not_show_is_left_to_pytorch(part: str) -> None:
    model = tiny("Llama")
    assert isinstance(decoder_of(model, "int8"), Decoder)
    mlp = model.model.layers[1].mlp
    if part == "a block":
        mlp.__class__ = Halved
    elif part == "the model":
        model.__class__ = Twice
    elif part == "a hook":
        mlp.register_forward_hook(lambda *arguments: 0.5 * arguments[-1])
    else:
        forward = mlp.forward
        mlp.forward = lambda x: 0.5 * forward(x)
    found = decoder_of(model, "int8")
    assert isinstance(found, str)
    assert "its modules do not show" in found or "is changed by other code" in found
