"""Tiny models of every class that transformers registers for generating text, from their default configurations.

A default configuration is rebuilt with small numbers in every field whose name shows what it counts. `class_options`
has additional options for individual model types.
"""

import copy
import dataclasses
import re
from typing import Any

from transformers import PreTrainedConfig
from transformers.models.auto import modeling_auto

from tests.support.class_options import OPTIONS, VOCAB_SIZE

_MAPPINGS = ("CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM")

_SIZES: tuple[tuple[str, Any], ...] = (
    (r"(unpadded_)?vocab_size|n_vocab|vocabulary_size", VOCAB_SIZE),
    (r"(.*_)?(num_experts_per_tok|moe_topk|moe_k|moe_top_k|num_experts_per_token|top_k_experts)", 2),
    (r"(.*_)?(n_group|topk_group|num_expert_group|n_groups|mamba_n_groups|num_groups)", 1),
    (r"(.*_)?(num_(local_|routed_)?experts|n_routed_experts|moe_num_experts|num_experts)", 4),
    (r"(n_shared_experts|num_shared_experts|moe_num_shared_experts)", 1),
    (r"(.*_)?(num_key_value_heads|num_kv_heads|n_kv_heads|kv_heads|num_key_value_groups)", 2),
    (r"(.*_)?(num_attention_heads|n_heads?|num_heads|attention_heads|num_attn_heads|linear_num_value_heads)", 4),
    (r"(.*_)?linear_num_key_heads", 2),
    (r"(.*_)?(qk_rope_head_dim|qk_nope_head_dim|rotary_dim|index_rope_head_dim)", 4),
    (r"qk_head_dim|(.*_)?(head_dim|d_kv|head_size|dim_head|v_head_dim|attention_head_size)", 8),
    (r"(.*_)?(q_lora_rank|kv_lora_rank|lora_rank|o_lora_rank)", 16),
    (r"(.*_)?(intermediate_size|ffn_dim|d_ff|ffn_hidden_size|n_inner|ffn_size|dim_ff|mlp_dim|inner_dim)", 48),
    (r"(.*_)?(hidden_size|d_model|n_embd|embed_dim|emb_dim|embedding_size|projection_dim|hidden_dim|embedding_dim"
     r"|word_embed_proj_dim|output_dim|out_hidden_size|width|proj_dim)", 32),
    (r"(.*_)?(num_hidden_layers|n_layers?|num_layers|(encoder|decoder)_layers|depth|num_blocks|num_block)", 2),
    (r"(?!original)(.*_)?(max_position_embeddings|n_positions|max_seq_len|max_sequence_length|n_ctx"
     r"|max_target_positions)", 256),
    (r"(.*_)?image_size", 16),
    (r"(.*_)?patch_size", 4),
    (r"sliding_window|attention_window_size|window_size", 8),
    (r"(.*_)?(state_size|mamba_d_state|ssm_state_size|d_state)", 4),
    (r"num_mel_bins|n_mels", 8),
    (r"max_source_positions", 40),
)  # fmt: skip

_RULES = tuple((re.compile(pattern), value) for pattern, value in _SIZES)


def class_names() -> dict[str, str]:
    """Return every registered class for text generation and its model type."""
    found: dict[str, str] = {}
    for name in _MAPPINGS:
        mapping = getattr(modeling_auto, f"MODEL_FOR_{name}_MAPPING_NAMES", {})
        for model_type, names in mapping.items():
            for class_name in (names,) if isinstance(names, str) else names:
                found.setdefault(class_name, model_type)
    return dict(sorted(found.items()))


def _sized(name: str, value: Any) -> Any:
    """Return a small value for a field, or its own value if no rule matches."""
    if isinstance(value, int) and not isinstance(value, bool):
        for pattern, small in _RULES:
            if pattern.fullmatch(name):
                return small
    return value


def _layers(kinds: list[Any]) -> list[Any]:
    each = list(dict.fromkeys(kinds))
    return each if len(each) > 1 else each * 2


def _rotary(parameters: Any) -> Any:
    """Scale the sections of a large head's rotary dimensions to a small head."""
    if isinstance(parameters, dict):
        small = {key: _rotary(value) for key, value in parameters.items()}
        return small | ({"mrope_section": [1, 1, 2]} if "mrope_section" in small else {})
    return parameters


def _value(config: PreTrainedConfig, field: dataclasses.Field[Any]) -> Any:
    try:
        return getattr(config, field.name, None)
    except Exception:  # noqa: BLE001 - of a class of its own: each layer has its own number
        return field.default


def _is_one_a_layer(value: Any, num_layers: Any) -> bool:
    return isinstance(value, list) and len(value) == num_layers and len(value) > 2


def _control_ids(options: dict[str, Any], values: dict[str, Any]) -> dict[str, int]:
    """Replace ids beyond the small vocabulary with distinct ids within it."""
    beyond = [
        name
        for name, value in values.items()
        if name.endswith(("_token_id", "_token_index")) and isinstance(value, int) and value >= VOCAB_SIZE
    ]
    return {name: VOCAB_SIZE - 1 - place for place, name in enumerate(beyond) if name not in options}


def tiny_options(config: PreTrainedConfig, own: dict[str, Any]) -> dict[str, Any]:
    num_layers = getattr(config, "num_hidden_layers", None)
    subs = getattr(type(config), "sub_configs", {})
    fields = [field for field in dataclasses.fields(config) if field.init and field.name not in {*subs, *own}]
    values = {field.name: _value(config, field) for field in fields}
    values = {name: value for name, value in values.items() if not isinstance(value, PreTrainedConfig)}
    layers = _layers(values["layer_types"]) if _is_one_a_layer(values.get("layer_types"), num_layers) else []
    values = {name: value for name, value in values.items() if not _is_one_a_layer(value, num_layers)}  # recreated
    options = {name: small for name, value in values.items() if (small := _rotary(_sized(name, value))) != value}
    options |= _control_ids(options, values)
    if layers:
        options |= {"layer_types": layers, "num_hidden_layers": len(layers)}
    if "head_dim" in values:
        options["head_dim"] = own.get("hidden_size", 32) // own.get("num_attention_heads", 4)
    if "qk_rope_head_dim" in options:
        options |= {name: 4 for name in ("head_dim", "num_key_value_heads") if name in values}
    for name in subs:
        value = getattr(config, name, None)
        if isinstance(value, PreTrainedConfig) and name not in own:
            options[name] = tiny_config(type(value), value).to_dict()
    return options | own


def tiny_config(
    kind: type[PreTrainedConfig], default: PreTrainedConfig | None = None, **options: Any
) -> PreTrainedConfig:
    """Build a small configuration; `options` go before its own small values."""
    own = copy.deepcopy(OPTIONS.get(kind.model_type, {})) | options  # some configurations empty their arguments
    if default is None:
        try:
            default = kind()
        except ValueError:  # before transformers 5.23 some have no default parts
            default = kind(**own)
    return kind(**tiny_options(default, own))
