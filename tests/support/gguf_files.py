"""GGUF files written from tokenizers and tiny models, as llama.cpp's converter writes them."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def writer(path: Path, architecture: str = "llama") -> Any:
    """Return a writer for a new file."""
    import gguf

    return gguf.GGUFWriter(str(path), architecture)


def finish(file: Any) -> None:
    """Write the file and close it."""
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def write_tokenizer(path: Path, tokenizer: Any, pre: str = "", architecture: str = "llama", **options: Any) -> Path:
    """Write a file that contains only a tokenizer."""
    file = writer(path, architecture)
    add_tokenizer(file, tokenizer, pre, **options)
    finish(file)
    return path


def add_tokenizer(file: Any, tokenizer: Any, pre: str = "", head_size: int | None = None, **options: Any) -> None:
    """Add a tokenizer of any kind that GGUF supports; ids are padded up to `head_size`, as converters do."""
    backend = tokenizer.backend_tokenizer
    state = json.loads(backend.to_str())
    kind = type(backend.model).__name__
    tokens = {i: token for token, i in backend.get_vocab(with_added_tokens=True).items()}
    size = max(head_size or 0, max(tokens) + 1)
    names = [tokens.get(i, f"[PAD{i}]") for i in range(size)]
    kinds = [NORMAL if i in tokens else UNUSED for i in range(size)]
    for i, token in backend.get_added_tokens_decoder().items():
        kinds[i] = CONTROL if token.special else USER_DEFINED
    scores = options.pop("scores", None)
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in state["model"].get("merges", ())]
    if kind == "Unigram":
        file.add_tokenizer_model("t5")
        scores = [score for _, score in state["model"]["vocab"]]
        if "Precompiled" in json.dumps(state["normalizer"]):
            file.add_precompiled_charsmap(base64.b64decode(state["normalizer"]["precompiled_charsmap"]))
    elif "ByteLevel" in json.dumps(state["pre_tokenizer"]):
        file.add_tokenizer_model("gpt2")
        file.add_tokenizer_pre(pre)
        file.add_token_merges(merges)
    else:
        file.add_tokenizer_model("llama")
        scores = scores or _scores(names, merges)
    if scores is not None:
        file.add_token_scores(scores + [0.0] * (size - len(scores)))
        kinds = [BYTE if re.fullmatch("<0x[0-9A-F]{2}>", n) else k for n, k in zip(names, kinds, strict=True)]
    file.add_token_list(names)
    file.add_token_types(kinds)
    for role in ("bos", "eos", "unk", "pad", "sep", "cls"):
        token_id = getattr(tokenizer, f"{role}_token_id", None)
        if token_id is not None:
            name = {"unk": "unknown", "pad": "padding", "sep": "seperator"}.get(role, role)  # the format's spelling
            file.add_uint32(f"tokenizer.ggml.{name}_token_id", token_id)
    for name, value in options.items():
        getattr(file, name)(value)


def _scores(names: list[str], merges: list[str]) -> list[float]:
    """Return scores that represent the order of the merges."""
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(merges):
        ranks.setdefault(merge.replace(" ", ""), rank)
    return [-float(ranks.get(name, 1_000_000)) for name in names]


def scores_of(folder: Path) -> list[float]:
    """Return the scores in a folder's `tokenizer.model`."""
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    return [model.get_score(i) for i in range(model.vocab_size())]


def write_llama(
    path: Path, model: Any, tokenizer: Any, pre: str = "", context: int | None = None, **options: Any
) -> Path:
    """Write a `LlamaForCausalLM` in float32, with a tokenizer."""
    config = model.config
    file = writer(path)
    file.add_context_length(context or config.max_position_embeddings)
    file.add_embedding_length(config.hidden_size)
    file.add_block_count(config.num_hidden_layers)
    file.add_feed_forward_length(config.intermediate_size)
    file.add_head_count(config.num_attention_heads)
    file.add_head_count_kv(config.num_key_value_heads)
    file.add_layer_norm_rms_eps(config.rms_norm_eps)
    file.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    file.add_rope_freq_base(float(config.rope_parameters["rope_theta"]))
    file.add_file_type(0)
    state = {name: weight.detach().float().numpy() for name, weight in model.state_dict().items()}
    file.add_vocab_size(state["model.embed_tokens.weight"].shape[0])
    if tokenizer is not None:
        add_tokenizer(file, tokenizer, pre, head_size=state["model.embed_tokens.weight"].shape[0], **options)
    file.add_tensor("token_embd.weight", state["model.embed_tokens.weight"])
    file.add_tensor("output_norm.weight", state["model.norm.weight"])
    file.add_tensor("output.weight", state["lm_head.weight"])
    for layer in range(config.num_hidden_layers):
        own, theirs = f"model.layers.{layer}.", f"blk.{layer}."
        for ours, name in _LAYER.items():
            weight = state[own + name + ".weight"]
            if name.endswith(("q_proj", "k_proj")):
                num_heads = config.num_attention_heads if name.endswith("q_proj") else config.num_key_value_heads
                weight = _interleaved(weight, num_heads)
            file.add_tensor(theirs + ours + ".weight", np.ascontiguousarray(weight))
    finish(file)
    return path


def write_lfm2(path: Path, model: Any, tokenizer: Any, pre: str = "gpt-2") -> Path:
    """Write an `Lfm2ForCausalLM` in float32, with a tokenizer."""
    config = model.config
    file = writer(path, "lfm2")
    file.add_context_length(config.max_position_embeddings)
    file.add_embedding_length(config.hidden_size)
    file.add_block_count(config.num_hidden_layers)
    file.add_head_count(config.num_attention_heads)
    heads = {"conv": 0, "full_attention": config.num_key_value_heads}
    file.add_head_count_kv([heads[kind] for kind in config.layer_types])
    file.add_layer_norm_rms_eps(config.norm_eps)
    file.add_rope_freq_base(float(config.rope_parameters["rope_theta"]))
    file.add_shortconv_l_cache(config.conv_L_cache)
    file.add_file_type(0)
    state = {name: weight.detach().float().numpy() for name, weight in model.state_dict().items()}
    head = state["lm_head.weight"]
    file.add_feed_forward_length(state["model.layers.0.feed_forward.w1.weight"].shape[0])
    file.add_vocab_size(head.shape[0])
    add_tokenizer(file, tokenizer, pre, head_size=head.shape[0])
    names = {f"model.layers.{i}.": f"blk.{i}." for i in range(config.num_hidden_layers)} | _LFM2
    for name, weight in state.items():
        for theirs, ours in names.items():
            name = name.replace(theirs, ours)
        file.add_tensor(name, np.ascontiguousarray(weight.squeeze(1) if name.endswith("conv.conv.weight") else weight))
    finish(file)
    return path


_LFM2 = {
    "model.embed_tokens": "token_embd",
    "model.embedding_norm": "token_embd_norm",
    "lm_head": "output",
    ".conv.": ".shortconv.",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w2": "ffn_down",
    "feed_forward.w3": "ffn_up",
    "operator_norm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
}


def write_mamba(path: Path, model: Any, tokenizer: Any, pre: str = "gpt-2") -> Path:
    """Write a `MambaForCausalLM` in float32, with a tokenizer."""
    config = model.config
    file = writer(path, "mamba")
    file.add_context_length(256)
    file.add_embedding_length(config.hidden_size)
    file.add_feed_forward_length(0)
    file.add_head_count(0)
    file.add_block_count(config.num_hidden_layers)
    file.add_ssm_conv_kernel(config.conv_kernel)
    file.add_ssm_inner_size(config.intermediate_size)
    file.add_ssm_state_size(config.state_size)
    file.add_ssm_time_step_rank(config.time_step_rank)
    file.add_layer_norm_rms_eps(config.layer_norm_epsilon)
    file.add_file_type(0)
    state = {name: weight.detach().float().numpy() for name, weight in model.state_dict().items()}
    add_tokenizer(file, tokenizer, pre, head_size=state["lm_head.weight"].shape[0])
    for name, weight in state.items():
        if name.endswith("A_log"):
            weight = -np.exp(weight)
        for theirs, ours in _MAMBA.items():
            name = name.replace(theirs, ours)
        file.add_tensor(name, np.ascontiguousarray(weight.squeeze(1) if "conv1d.weight" in name else weight))
    finish(file)
    return path


_MAMBA = {
    "backbone.layers": "blk",
    "backbone.embeddings": "token_embd",
    "backbone.norm_f": "output_norm",
    "lm_head": "output",
    "mixer.A_log": "ssm_a",
    "mixer.D": "ssm_d",
    "mixer.in_proj": "ssm_in",
    "mixer.x_proj": "ssm_x",
    "mixer.dt_proj": "ssm_dt",
    "mixer.out_proj": "ssm_out",
    "mixer.conv1d": "ssm_conv1d",
    "norm.weight": "attn_norm.weight",
    "output_attn_norm": "output_norm",
}

_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def _interleaved(weight: Any, num_heads: int) -> Any:
    """Reorder the rows of each head as in the original Llama, which interleaves its two halves."""
    rows, columns = weight.shape
    return weight.reshape(num_heads, 2, rows // num_heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)
