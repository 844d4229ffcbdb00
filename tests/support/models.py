"""Tiny models: randomly initialized ones of many architectures, and bigram models whose distributions are a table."""

import copy
import json
import math
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.support.tiny_classes import class_names, tiny_config
from tests.support.tokenizers import small_tokenizer

# Standard deviations by part of a weight's name. T5 neither scales its attention nor centers its norm, so its output
# would repeat one id with the usual deviations.
_GAINS = {"embed_positions": 3.0, "embed": 1.0, "wte": 1.0, "shared": 0.3, "relative": 3.0, "EncDecAttention.o": 0.18,
          "Attention.q": 0.25, "Attention.k": 0.25}  # fmt: skip

# Maps a name to the model type, options beside those of `tiny_config`, the target's tokenizer, and the draft's.
ARCHITECTURES: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "gpt2": ("gpt2", {}, "byte_level", "llama"),
    "llama": ("llama", {}, "byte_level_llama3", "unigram"),
    "mistral": ("mistral", {"sliding_window": 9}, "llama", "byte_level"),
    "qwen2": ("qwen2", {}, "byte_level", "byt5"),
    "qwen2-window": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 7, "layer_types": ["full_attention", "sliding_attention"]},
        "byte_level",
        "llama",
    ),
    "qwen3": ("qwen3", {}, "byte_level_llama3", "llama_prepend"),
    "gemma2": ("gemma2", {"sliding_window": 8}, "llama", "byte_level_digits"),
    "gemma3": ("gemma3_text", {"sliding_window": 8}, "llama_prepend", "byte_level"),
    "phi": ("phi", {}, "byte_level", "unigram_unsplit"),
    "phi3": ("phi3", {"sliding_window": 10}, "llama_prepend", "byte_level"),
    "gpt_neox": ("gpt_neox", {}, "byte_level", "wordpiece"),
    "gptj": ("gptj", {}, "byte_level", "llama_crossing"),
    "falcon": ("falcon", {"new_decoder_architecture": True, "ffn_hidden_size": 128}, "byte_level", "llama"),
    "falcon-alibi": ("falcon", {"alibi": True, "multi_query": True, "ffn_hidden_size": 128}, "byte_level", "llama"),
    "opt": ("opt", {}, "byte_level", "unigram_lossy"),
    "bloom": ("bloom", {}, "byte_level", "llama_no_bytes"),
    "mpt": ("mpt", {"use_cache": True}, "byte_level", "byt5"),
    "starcoder2": ("starcoder2", {"sliding_window": 11}, "byte_level_digits", "unigram"),
    "mixtral": ("mixtral", {}, "llama", "byte_level_llama3"),
    "olmo": ("olmo", {}, "byte_level", "sentencepiece_library"),
    "cohere": ("cohere", {}, "byte_level", "slow_python"),
    "granite": ("granite", {}, "byte_level", "end_of_word"),
    "glm": ("glm", {}, "byt5", "byte_level"),
    "stablelm": ("stablelm", {}, "byte_level_whole", "llama"),
    "gpt_bigcode": ("gpt_bigcode", {}, "byte_level_digits", "unigram"),
    "gpt_oss": ("gpt_oss", {"sliding_window": 8}, "unigram", "byte_level"),
    "t5": ("t5", {}, "unigram", "llama"),
    "bart": ("bart", {"encoder_layers": 1, "forced_eos_token_id": None, "seed": 3}, "byte_level", "llama"),
}

_ZAMBA = {"num_hidden_layers": 3, "layers_block_type": ["linear_attention", "hybrid", "linear_attention"]}

# Architectures that keep a state instead of positions in some or all layers: model type and options.
STATEFUL: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba": ("mamba", {}),
    "rwkv": ("rwkv", {}),
    "qwen3_next": ("qwen3_next", {}),
    "lfm2": ("lfm2", {}),
    "mamba2": ("mamba2", {"chunk_size": 8}),
    "falcon_h1": ("falcon_h1", {"mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_chunk_size": 8}),
    "granitemoehybrid": ("granitemoehybrid", {"num_local_experts": 0, "mamba_chunk_size": 8}),
    "jamba": ("jamba", {"use_mamba_kernels": False}),
    # The least time step is one that blocks reach, if they limit it.
    "nemotron_h": ("nemotron_h", {"chunk_size": 8, "time_step_min": 1.2}),
    "zamba2": ("zamba2", _ZAMBA | {"chunk_size": 8, "time_step_min": 1.2}),
}

# Models with states that can draft.
HYBRID_DRAFTS: dict[str, tuple[str, dict[str, Any]]] = {
    name: options for name, options in STATEFUL.items() if name != "rwkv"
} | {
    "qwen3_5": ("qwen3_5_text", {}),
    "bamba": ("bamba", {"mamba_chunk_size": 8}),
    "zamba": ("zamba", _ZAMBA | {"use_mamba_kernels": False}),
    "zamba2": ("zamba2", _ZAMBA | {"chunk_size": 8}),  # as drafts, they read blocks with the limit
    "nemotron_h": ("nemotron_h", {"chunk_size": 8}),
}

# Architectures that fall back to plain decoding, because their logits differ, or their forward fails, for a block of
# candidates: model type, options, and a part of the reason.
ONE_TOKEN: dict[str, tuple[str, dict[str, Any], str]] = {
    "cpmant": ("cpmant", {}, "as the last one"),
    "prophetnet": ("prophetnet", {"decoder_start_token_id": 2}, "one token at a time"),
    "doge": ("doge", {}, "by rank"),
    "moshi": ("moshi", {"sliding_window": 6}, "applies no window mask"),
    "xlm": ("xlm", {"mask_token_id": 1, "causal": False}, "mask token"),
    "bert": ("bert", {}, "is_decoder=False"),
    "big_bird": ("big_bird", {"is_decoder": True}, "in its first pass"),
    "roberta": ("roberta", {}, "is_decoder=False"),
    "gemma3, bidirectional": ("gemma3_text", {"use_bidirectional_attention": True}, "is bidirectional"),
    "llama, bidirectional": ("llama", {"is_causal": False}, "is bidirectional"),
}


def spread(model: Any) -> Any:
    """Make a model's weights so large that its output varies."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                usual = 2.0 / math.sqrt(parameter.shape[-1])
                parameter.normal_(0.0, next((gain for part, gain in _GAINS.items() if part in name), usual))
    return model.eval()


def tiny_model(
    model_type: str, vocab_size: int, seed: int = 0, eos_id: int | None = None, pad_id: int | None = 0, **options: Any
) -> Any:
    """Build a model whose output varies: weights far larger than a trained model's, untied head and embeddings."""
    torch.manual_seed(seed)
    ids = {"bos_token_id": None, "eos_token_id": eos_id, "pad_token_id": pad_id}
    config = tiny_config(CONFIG_MAPPING[model_type], vocab_size=vocab_size, tie_word_embeddings=False, **ids | options)
    auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    return spread(auto.from_config(config, dtype=torch.float32))


def tiny_of_class(class_name: str, seed: int = 0) -> Any:
    kind = getattr(transformers, class_name)
    config = tiny_config(kind.config_class or CONFIG_MAPPING[class_names()[class_name]])
    torch.manual_seed(seed)
    return spread(kind(config).float())


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
        model_type, known = "llama", {}
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
