"""Loads the model in a GGUF file as a transformers model, for the families whose files are known here.

Each tensor and each setting of a file must have a meaning here. So a file with something else, such as experts or a
scaling of its positions, is refused and not run wrongly.
"""

from typing import Any

import torch

from uag.errors import UagError
from uag.gguf.reader import Contents

_FAMILIES = {
    "llama": "llama", "smollm3": "smollm3", "granite": "granite", "qwen2": "qwen2", "qwen3": "qwen3", "olmo2": "olmo2",
    "phi3": "phi3", "starcoder2": "starcoder2", "gpt2": "gpt2", "gemma": "gemma", "gemma2": "gemma2",
    "gemma3": "gemma3_text",
}  # fmt: skip
"""The name of each family in transformers."""

_INTERLEAVED = ("llama", "smollm3", "granite")  # heads have the order of the original Llama
_PLUS_ONE = ("gemma", "gemma2", "gemma3")  # 1 is added to the weights of norms
_CONV1D = ("gpt2",)  # linear layers are transposed

_SETTINGS = {
    "context_length": "max_position_embeddings", "embedding_length": "hidden_size", "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size", "vocab_size": "vocab_size",
    "attention.head_count": "num_attention_heads", "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim", "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}  # fmt: skip
_WINDOW = {"attention.sliding_window": "sliding_window"}
_SOFTCAPS = {name: name for name in ("attn_logit_softcapping", "final_logit_softcapping")}
_SETTINGS_OF = {
    "phi3": _WINDOW, "gemma2": _WINDOW | _SOFTCAPS, "gemma3": _WINDOW,
    "granite": {
        "attention.scale": "attention_multiplier", "embedding_scale": "embedding_multiplier",
        "residual_scale": "residual_multiplier", "logit_scale": "logits_scaling",
    },
}  # fmt: skip
_EPSILONS = "layer_norm_epsilon", "norm_epsilon"  # the names of one setting in transformers
_FACTORS = "rope_freqs.weight"  # what frequencies of rotary positions are divided by (Llama 3)


class UnknownFileError(UagError):
    """A GGUF file that cannot be loaded here; the message follows "the file"."""


def family_of(contents: Contents) -> str:
    """Return the family of a file in transformers, or raise an `UnknownFileError`."""
    name = contents.values.get("general.architecture")
    if name not in _FAMILIES:
        raise UnknownFileError(f"has the architecture {name!r}")
    if "token_embd.weight" not in contents.tensors:
        raise UnknownFileError("has no embedding")
    return _FAMILIES[name]


def load_model(contents: Contents) -> Any:
    """Return a model in float32 on the CPU, with copies of the file's weights.

    Raises:
        UnknownFileError: the file has something without a meaning here, or lacks something.
        ValueError: the file is damaged.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(family_of(contents), **settings_of(contents))
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(config)
    weights = _weights(contents, empty)
    model = type(empty).from_pretrained(None, config=config, state_dict=weights, dtype=torch.float32)
    if _FACTORS in contents.tensors:
        model.model.rotary_emb.inv_freq.div_(contents.tensor(_FACTORS))
    return model.eval()


def settings_of(contents: Contents) -> dict[str, Any]:
    """Return the settings of a file as options of its family's configuration, or raise an `UnknownFileError`."""
    family_of(contents)
    values, tensors = contents.values, contents.tensors
    name = values["general.architecture"]
    prefix = f"{name}."
    names = _SETTINGS | _SETTINGS_OF.get(name, {})
    found = {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}
    options: dict[str, Any] = {"rope_theta": 10_000.0, "pad_token_id": None}
    options["tie_word_embeddings"] = "output.weight" not in tensors
    options |= {names[key]: found.pop(key) for key in names if key in found and not isinstance(found[key], list)}
    options |= dict.fromkeys(_EPSILONS, found.pop("attention.layer_norm_epsilon", 1e-5))
    if not {"hidden_size", "num_hidden_layers", "num_attention_heads"} <= options.keys():
        raise UnknownFileError("lacks settings")
    heads = options["num_attention_heads"]
    options.setdefault("num_key_value_heads", heads)
    options["vocab_size"] = tensors["token_embd.weight"].shape[0]
    size = found.pop("rope.dimension_count", None)
    options["head_dim"] = options.get("head_dim") or size or options["hidden_size"] // heads
    options["query_pre_attn_scalar"] = options["head_dim"]
    options["attention_bias"], options["mlp_bias"] = (f"blk.0.{name}.bias" in tensors for name in ("attn_q", "ffn_up"))
    known = {"attention.value_length": options["head_dim"], "rope.scaling.type": "none"}
    known["rope.scaling.original_context_length"] = options.get("max_position_embeddings")
    known |= {"expert_count": 0, "expert_used_count": 0, "attention.causal": True, "pooling_type": 0}
    strange = next((key for key, value in found.items() if value != known.get(key)), "")
    if size not in (None, options["head_dim"]):
        strange = "rope.dimension_count"
    if strange:
        raise UnknownFileError(f"has the setting {prefix}{strange}")
    return options


def _weights(contents: Contents, model: Any) -> dict[str, torch.Tensor]:
    """Return the weights of a file by transformers' names; `model` has none."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    name = contents.values["general.architecture"]
    architecture = next((key for key, value in MODEL_ARCH_NAMES.items() if value == name), None)
    if architecture is None:
        raise UnknownFileError(f"has the architecture {name!r}, which the installed gguf package does not know")
    names = get_tensor_name_map(architecture, model.config.num_hidden_layers)
    weights, unread = {}, set(contents.tensors) - ({_FACTORS} if name == "llama" else set())
    for theirs, weight in model.state_dict().items():
        own = names.get_name(theirs, try_suffixes=(".weight", ".bias"))
        if theirs == "lm_head.weight" and "output.weight" not in contents.tensors:
            continue  # the embedding is the head
        if own not in unread:
            raise UnknownFileError(f"lacks the weights {own or theirs!r}")
        unread.remove(own)
        found = contents.tensor(own)
        if name in _INTERLEAVED and ("attn_q." in own or "attn_k." in own):
            halves = found.view(-1, model.config.head_dim // 2, 2, *found.shape[1:])
            found = halves.transpose(1, 2).reshape(found.shape)
        elif name in _PLUS_ONE and own.endswith("norm.weight"):
            found = found - 1
        elif name in _CONV1D and found.dim() == 2 and own.startswith("blk."):
            found = found.t().contiguous()
        if found.shape != weight.shape:
            raise UnknownFileError(f"has weights {own!r} of an unexpected shape")
        weights[theirs] = found
    if unread:
        raise UnknownFileError(f"has the weights {min(unread)!r}")
    return weights
