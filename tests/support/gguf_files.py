"""GGUF files written from tokenizers and tiny models, as llama.cpp's converter writes them."""

import json
import re
from collections.abc import Callable, Mapping
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
    settings = _attention(config) | {
        "context_length": context or config.max_position_embeddings,
        "feed_forward_length": config.intermediate_size,
        "head_count_kv": config.num_key_value_heads,
        "layer_norm_rms_eps": config.rms_norm_eps,
        "rope_dimension_count": config.hidden_size // config.num_attention_heads,
    }

    def changed(name: str, weight: Any) -> Any:
        if "attn_q" in name or "attn_k" in name:
            return _interleaved(weight, settings["head_count" if "attn_q" in name else "head_count_kv"])
        return weight

    return _write(path, "llama", model, tokenizer, pre, settings, changed, **options)


def write_lfm2(path: Path, model: Any, tokenizer: Any, pre: str) -> Path:
    """Write an `Lfm2ForCausalLM` in float32, with a tokenizer."""
    config = model.config
    heads = {"conv": 0, "full_attention": config.num_key_value_heads}
    settings = _attention(config) | {
        "context_length": config.max_position_embeddings,
        "feed_forward_length": model.model.layers[0].feed_forward.w1.weight.shape[0],
        "head_count_kv": [heads[kind] for kind in config.layer_types],
        "layer_norm_rms_eps": config.norm_eps,
        "shortconv_l_cache": config.conv_L_cache,
    }

    def changed(name: str, weight: Any) -> Any:
        return weight.squeeze(1) if name.endswith("shortconv.conv.weight") else weight

    return _write(path, "lfm2", model, tokenizer, pre, settings, changed)


def write_mamba(path: Path, model: Any, tokenizer: Any, pre: str) -> Path:
    """Write a `MambaForCausalLM` in float32, with a tokenizer."""
    config = model.config
    settings = {
        "context_length": 256,
        "embedding_length": config.hidden_size,
        "feed_forward_length": 0,
        "head_count": 0,
        "block_count": config.num_hidden_layers,
        "ssm_conv_kernel": config.conv_kernel,
        "ssm_inner_size": config.intermediate_size,
        "ssm_state_size": config.state_size,
        "ssm_time_step_rank": config.time_step_rank,
        "layer_norm_rms_eps": config.layer_norm_epsilon,
    }

    def changed(name: str, weight: Any) -> Any:
        if "conv1d.weight" in name:
            return weight.squeeze(1)
        return -np.exp(weight) if name.endswith("ssm_a") else weight

    return _write(path, "mamba", model, tokenizer, pre, settings, changed)


def _attention(config: Any) -> dict[str, Any]:
    """Return settings of models with attention."""
    return {
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "head_count": config.num_attention_heads,
        "rope_freq_base": float(config.rope_parameters["rope_theta"]),
    }


def _write(
    path: Path, architecture: str, model: Any, tokenizer: Any, pre: str, settings: Mapping[str, Any],
    changed: Callable[[str, Any], Any], **options: Any,
) -> Path:  # fmt: skip
    """Write a model; `changed` takes the name of a weight in the file and changes its layout."""
    import gguf

    file = writer(path, architecture)
    for name, value in settings.items():
        if isinstance(value, np.ndarray):
            file.add_tensor(name, value)
        else:
            getattr(file, f"add_{name}")(value)
    file.add_file_type(0)
    head_size = model.lm_head.weight.shape[0]
    file.add_vocab_size(head_size)
    add_tokenizer(file, tokenizer, pre, head_size=head_size, **options)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], settings["block_count"])
    embedding = model.get_input_embeddings().weight
    for theirs, weight in model.state_dict().items():
        if theirs == "lm_head.weight" and weight.data_ptr() == embedding.data_ptr():
            continue  # a tied head
        name = names.get_name(theirs, try_suffixes=(".weight", ".bias")) or theirs
        file.add_tensor(name, np.ascontiguousarray(changed(name, weight.detach().float().numpy())))
    finish(file)
    return path


def _interleaved(weight: Any, num_heads: int) -> Any:
    """Reorder the rows of each head as in the original Llama, which interleaves its two halves."""
    rows, columns = weight.shape
    return weight.reshape(num_heads, 2, rows // num_heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_family(path: Path, architecture: str, model: Any, tokenizer: Any, pre: str = "gpt-2", **more: Any) -> Path:
    """Write a decoder of a family as llama.cpp's converter writes it, with `more` settings."""
    config, adders = model.config, {}
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    settings = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "head_count": config.num_attention_heads,
        "feed_forward_length": getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
    }
    if architecture != "gpt2":
        of_layers = config.rope_parameters.get("full_attention", config.rope_parameters)
        adders = {"rope_freq_base": float(of_layers["rope_theta"]), "head_count_kv": config.num_key_value_heads}
    if architecture in ("qwen3", "gemma", "gemma2", "gemma3"):
        adders |= {"key_length": head_dim, "value_length": head_dim}
    elif architecture != "gpt2":
        adders["rope_dimension_count"] = head_dim
    epsilon = next(name for name in ("rms_norm_eps", "norm_epsilon", "layer_norm_epsilon") if hasattr(config, name))
    adders["layer_norm_rms_eps" if epsilon == "rms_norm_eps" else "layer_norm_eps"] = getattr(config, epsilon)
    if architecture in ("phi3", "gemma2", "gemma3"):
        adders["sliding_window"] = config.sliding_window
    if architecture == "gemma2":
        adders["attn_logit_softcapping"] = config.attn_logit_softcapping
        adders["final_logit_softcapping"] = config.final_logit_softcapping
    if architecture == "granite":
        adders |= {"attention_scale": config.attention_multiplier, "embedding_scale": config.embedding_multiplier}
        adders |= {"residual_scale": config.residual_multiplier, "logit_scale": config.logits_scaling}

    def changed(name: str, weight: Any) -> Any:
        if architecture in ("llama", "smollm3", "granite") and ("attn_q" in name or "attn_k" in name):
            heads = config.num_attention_heads if "attn_q" in name else config.num_key_value_heads
            return _interleaved(weight, heads)
        if "gemma" in architecture and name.endswith("norm.weight"):
            return weight + 1
        return weight.T if architecture == "gpt2" and name.startswith("blk.") and weight.ndim == 2 else weight

    return _write(path, architecture, model, tokenizer, pre, settings | adders | more, changed)
