"""Tiny models: randomly initialized ones of many architectures, and bigram models whose distributions are a table."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from tests.support.tokenizers import small_tokenizer

_COMMON = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
_GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_SEQ2SEQ = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
_BART = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 256, "decoder_start_token_id": 2,
    "forced_eos_token_id": None, "seed": 3,
}  # fmt: skip

# Standard deviations by part of a weight's name. T5 neither scales its attention nor centers its norm, so its output
# would repeat one id with the usual deviations.
_GAINS = {"embed_positions": 3.0, "embed": 1.0, "wte": 1.0, "shared": 0.3, "relative": 3.0, "EncDecAttention.o": 0.18,
          "Attention.q": 0.25, "Attention.k": 0.25}  # fmt: skip

# Maps a name to the model type, options, the target's tokenizer, and the draft's tokenizer.
ARCHITECTURES: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "gpt2": ("gpt2", _GPT, "byte_level", "llama"),
    "llama": ("llama", _COMMON, "byte_level_llama3", "unigram"),
    "mistral": ("mistral", _COMMON | {"sliding_window": 9}, "llama", "byte_level"),
    "qwen2": ("qwen2", _COMMON, "byte_level", "byt5"),
    "qwen2-window": (
        "qwen2",
        _COMMON | {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
        "byte_level",
        "llama",
    ),
    "qwen3": ("qwen3", _COMMON | {"head_dim": 8}, "byte_level_llama3", "llama_prepend"),
    "gemma2": ("gemma2", _COMMON | {"head_dim": 8, "sliding_window": 8}, "llama", "byte_level_digits"),
    "gemma3": (
        "gemma3_text",
        _COMMON | {"head_dim": 8, "sliding_window": 8, "sliding_window_pattern": 2, "num_hidden_layers": 3},
        "llama_prepend",
        "byte_level",
    ),
    "phi": ("phi", _COMMON, "byte_level", "unigram_unsplit"),
    "phi3": ("phi3", _COMMON | {"pad_token_id": 0, "sliding_window": 10}, "llama_prepend", "byte_level"),
    "gpt_neox": ("gpt_neox", _COMMON, "byte_level", "wordpiece"),
    "gptj": ("gptj", _GPT | {"rotary_dim": 4}, "byte_level", "llama_crossing"),
    "falcon": ("falcon", _COMMON | {"new_decoder_architecture": True, "num_kv_heads": 2}, "byte_level", "llama"),
    "falcon-alibi": ("falcon", _COMMON | {"alibi": True, "multi_query": True}, "byte_level", "llama"),
    "opt": (
        "opt",
        _COMMON | {"ffn_dim": 48, "word_embed_proj_dim": 32},
        "byte_level",
        "unigram_lossy",
    ),
    "bloom": ("bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4}, "byte_level", "llama_no_bytes"),
    "mpt": (
        "mpt",
        {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 256, "use_cache": True},
        "byte_level",
        "byt5",
    ),
    "starcoder2": ("starcoder2", _COMMON | {"sliding_window": 11}, "byte_level_digits", "unigram"),
    "mixtral": ("mixtral", _COMMON | _EXPERTS, "llama", "byte_level_llama3"),
    "olmo": ("olmo", _COMMON, "byte_level", "sentencepiece_library"),
    "cohere": ("cohere", _COMMON, "byte_level", "slow_python"),
    "granite": ("granite", _COMMON, "byte_level", "end_of_word"),
    "glm": ("glm", _COMMON | {"head_dim": 8}, "byt5", "byte_level"),
    "stablelm": ("stablelm", _COMMON, "byte_level_whole", "llama"),
    "gpt_bigcode": ("gpt_bigcode", _GPT, "byte_level_digits", "unigram"),
    "gpt_oss": ("gpt_oss", _COMMON | _EXPERTS | {"head_dim": 8, "sliding_window": 8}, "unigram", "byte_level"),
    "t5": ("t5", _SEQ2SEQ, "unigram", "llama"),
    "bart": ("bart", _BART, "byte_level", "llama"),
}

_MAMBA_2 = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 4, "mamba_n_groups": 1, "mamba_chunk_size": 8}

# Architectures that keep a state instead of positions in some or all layers.
STATEFUL: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba": ("mamba", {"hidden_size": 16, "num_hidden_layers": 2, "state_size": 4}),
    "rwkv": ("rwkv", {"hidden_size": 16, "num_hidden_layers": 2, "attention_hidden_size": 16}),
    "qwen3_next": (
        "qwen3_next",
        _COMMON
        | {
            "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16, "layer_types": ["linear_attention", "full_attention"],
            "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
        },
    ),
    "lfm2": ("lfm2", _COMMON | {"layer_types": ["conv", "full_attention"]}),
    "mamba2": (
        "mamba2",
        {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, "num_heads": 8, "head_dim": 8, "n_groups": 1,
         "chunk_size": 8},
    ),
    "falcon_h1": (
        "falcon_h1",
        _COMMON | _MAMBA_2 | {"mamba_d_ssm": 64},
    ),
    "granitemoehybrid": (
        "granitemoehybrid",
        _COMMON | _MAMBA_2 | {"layer_types": ["mamba", "attention"], "shared_intermediate_size": 48,
                              "num_local_experts": 0},
    ),
    "jamba": (
        "jamba",
        _COMMON | {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "mamba_d_state": 4,
                   "use_mamba_kernels": False},
    ),
}  # fmt: skip

_ZAMBA = _COMMON | {"num_hidden_layers": 3, "layers_block_type": ["linear_attention", "hybrid", "linear_attention"],
                    "mamba_d_state": 4}  # fmt: skip

# Models with states that can draft.
HYBRID_DRAFTS: dict[str, tuple[str, dict[str, Any]]] = {
    name: options for name, options in STATEFUL.items() if name != "rwkv"
} | {
    "qwen3_5": (
        "qwen3_5_text",
        _COMMON
        | {
            "head_dim": 8, "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
            "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
        },
    ),
    "bamba": ("bamba", _COMMON | _MAMBA_2 | {"attn_layer_indices": [1]}),
    "zamba": ("zamba", _ZAMBA | {"n_mamba_heads": 2, "use_mamba_kernels": False}),
    "zamba2": (
        "zamba2",
        _ZAMBA | {"n_mamba_heads": 8, "mamba_ngroups": 1, "num_mem_blocks": 1, "adapter_rank": 4, "chunk_size": 8},
    ),
    "nemotron_h": (
        "nemotron_h",
        _COMMON
        | {
            "num_hidden_layers": 3, "layers_block_type": ["mamba", "attention", "mlp"], "mamba_num_heads": 8,
            "mamba_head_dim": 8, "ssm_state_size": 4, "n_groups": 1, "head_dim": 8,
            "chunk_size": 8,
        },
    ),
}  # fmt: skip

_PROPHET = {
    "hidden_size": 32, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "num_encoder_layers": 2, "num_decoder_layers": 2,
    "num_encoder_attention_heads": 4, "num_decoder_attention_heads": 4, "max_position_embeddings": 256,
    "decoder_start_token_id": 2,
}  # fmt: skip

# Architectures that fall back to plain decoding, because their logits differ, or their forward fails, for a block of
# candidates: model type, options, and a part of the reason.
ONE_TOKEN: dict[str, tuple[str, dict[str, Any], str]] = {
    "cpmant": (
        "cpmant",
        {"hidden_size": 32, "num_attention_heads": 4, "dim_head": 8, "dim_ff": 48, "num_hidden_layers": 2},
        "as the last one",
    ),
    "prophetnet": ("prophetnet", _PROPHET, "one token at a time"),
    "doge": ("doge", _COMMON, "by rank"),
    "moshi": ("moshi", _COMMON | {"head_dim": 8, "ffn_dim": 48, "sliding_window": 6}, "applies no window mask"),
    "xlm": ("xlm", {"emb_dim": 32, "n_layers": 2, "n_heads": 4, "mask_token_id": 1, "causal": False}, "mask token"),
    "bert": ("bert", _COMMON, "is_decoder=False"),
    "big_bird": ("big_bird", _COMMON | {"is_decoder": True}, "in its first pass"),
    "roberta": ("roberta", _COMMON, "is_decoder=False"),
}


def tiny_model(
    model_type: str, vocab_size: int, seed: int = 0, eos_id: int | None = None, pad_id: int | None = 0, **options: Any
) -> Any:
    """Build a model whose output varies: weights far larger than a trained model's, untied head and embeddings."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(
        model_type,
        vocab_size=vocab_size,
        tie_word_embeddings=False,
        **{"bos_token_id": None, "eos_token_id": eos_id, "pad_token_id": pad_id} | options,
    )
    auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    model = auto.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                usual = 2.0 / math.sqrt(parameter.shape[-1])
                parameter.normal_(0.0, next((gain for part, gain in _GAINS.items() if part in name), usual))
    return model


def tiny_target(name: str, **options: Any) -> tuple[Any, Any]:
    """Build a model of `ARCHITECTURES` with its tokenizer; its head is padded beyond the tokenizer."""
    model_type, known, tokenizer_name, _ = ARCHITECTURES[name]
    tokenizer = small_tokenizer(tokenizer_name)
    return tiny_model(model_type, len(tokenizer) + 5, **{"seed": 1} | known | options), tokenizer


def tiny_draft(name: str, **options: Any) -> tuple[Any, Any]:
    """Build the draft for an architecture of `ARCHITECTURES`, with a tokenizer of another family."""
    model_type, known, _, tokenizer_name = ARCHITECTURES[name]
    tokenizer = small_tokenizer(tokenizer_name)
    if model_type not in ("t5", "bart"):
        model_type, known = "llama", _COMMON
    return tiny_model(model_type, len(tokenizer) + 3, **known | {"seed": 3} | options), tokenizer


def twin(model: Any, tokenizer: Any, noise: float = 0.05, seed: int = 5) -> tuple[Any, Any]:
    """Build a draft similar to `model` with other ids: its vocabulary is shuffled, its weights are perturbed."""
    shuffled = torch.randperm(len(tokenizer), generator=torch.Generator().manual_seed(seed))
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    state["model"]["vocab"] = {piece: int(shuffled[i]) for piece, i in state["model"]["vocab"].items()}
    for added in state["added_tokens"]:
        added["id"] = int(shuffled[added["id"]])
    names = {name: getattr(tokenizer, name) for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
    other = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)), **{k: v for k, v in names.items() if v is not None}
    )
    draft = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for table in (draft.get_input_embeddings(), draft.get_output_embeddings()):
            weight = table.weight.clone()
            table.weight[shuffled] = weight[: len(tokenizer)]
        for parameter in draft.parameters():
            parameter += noise * parameter.std() * torch.randn(parameter.shape, generator=generator)
    return draft, other


def tiny_llama(vocabulary_size: int, num_layers: int = 1, max_positions: int = 512) -> Any:
    """Build a Llama of a few layers with transformers' default initialization."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary_size,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=num_layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=max_positions,
    )
    return LlamaForCausalLM(config).eval()


def spread(model: Any) -> Any:
    """Make a model's weights so large that its output varies."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0.0, 1.0 if "embed" in name else 2.0 / parameter.shape[-1] ** 0.5)
    return model.eval()


def bigram_model(table: Any) -> LlamaForCausalLM:
    """Build a causal LM whose logits are exactly `table[last id]` in any pass, because nothing is summed."""
    size = 4 if max(table.shape) <= 4 else 16  # the norm then multiplies by 2 or 4, exactly
    config = LlamaConfig(
        vocab_size=table.shape[1], hidden_size=size, intermediate_size=4, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, head_dim=4, bos_token_id=None, eos_token_id=None, pad_token_id=None,
        tie_word_embeddings=False, max_position_embeddings=64, rms_norm_eps=0.0,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(size)[: table.shape[1]])
        model.model.norm.weight.fill_(1.0)
        model.lm_head.weight[:, : table.shape[0]] = table.T / size**0.5
    return model
