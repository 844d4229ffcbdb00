"""Options of individual model types, in addition to the rules of `tiny_classes`."""

from typing import Any

from transformers import AutoConfig

VOCAB_SIZE = 300

_MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}


_SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}

_CONV = {"conv_dim": [16, 16], "conv_kernel": [4, 4], "conv_stride": [2, 2], "num_feat_extract_layers": 2,
         "feat_extract_norm": "layer", "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 4}  # fmt: skip


def _part(model_type: str, **options: Any) -> dict[str, Any]:
    return dict(AutoConfig.for_model(model_type, **_SMALL, **options).to_dict())


_DECODER = _part("bert", vocab_size=VOCAB_SIZE, is_decoder=True, add_cross_attention=True)

_START = {"decoder_start_token_id": 1}

_STARTS = {"vision_start_token_id": 290, "audio_start_token_id": 291}

OPTIONS: dict[str, dict[str, Any]] = {
    **{name: {"rope_parameters": _MROPE} for name in (
        "ernie4_5_vl_moe_text", "glm46v_text", "glm4v_text", "glm_ocr_text",
        "paddleocr_vl_text", "qwen2_5_vl_text", "qwen2_vl_text", "qwen2_5_omni_text",
    )},
    **{
        name: {"decoder_start_token_id": 0} for name in ("longt5", "pix2struct", "switch_transformers", "t5", "udop")
    },
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 4},
    "blt": {"num_hidden_layers": 2, "encoder_hash_byte_group_vocab": 64},
    "blt_global_transformer": {"hidden_size": 64},
    "blt_local_decoder": {"hidden_size_global": 64},
    "blt_local_encoder": {"hidden_size_global": 64},
    **{f"{name}_vqgan": {"base_channels": 32, "channel_multiplier": [1, 1]} for name in ("chameleon", "emu3", "janus")},
    "chameleon": {"vocabulary_map": {"<image>": 298}},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0}},
    "deepseek_v2": {"num_experts_per_tok": 2, "topk_method": "greedy", "topk_group": 1, "n_group": 1},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "emu3": {"vocabulary_map": {"<image>": 298, "<|extra_200|>": 297}},
    "encoder-decoder": {
        "encoder": _DECODER | {"is_decoder": False, "add_cross_attention": False}, "decoder": _DECODER, **_START,
    },
    "gemma3n_text": {
        "num_hidden_layers": 4, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8, "laurel_rank": 4,
        "vocab_size_per_layer_input": VOCAB_SIZE, "activation_sparsity_pattern": [0.0] * 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "gemma4_text": {
        "global_head_dim": 16, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB_SIZE,
        "layer_types": ["sliding_attention", "full_attention"], "num_hidden_layers": 2,
    },
    "gemma4_unified_text": {
        "global_head_dim": 16, "layer_types": ["sliding_attention", "full_attention"], "num_hidden_layers": 2,
    },
    "glm4v_moe_text": {"rope_parameters": _MROPE | {"mrope_section": [1, 1, 0]}},
    "glm5_next_text": {"qk_rope_head_dim": 0, "index_topk": 16, "num_key_value_heads": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "window_size": 8},
    "granitemoehybrid": {
        "layer_types": ["mamba", "attention"], "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 4,
        "shared_intermediate_size": 48,
    },
    "hunyuan_vl_text": {"rope_parameters": _MROPE | {"mrope_section": [1, 1, 1, 1]}},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2},
    "lfm2": {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2, "num_dense_layers": 1},
    "mamba2": {"num_heads": 8, "head_dim": 8, "hidden_size": 32, "n_groups": 1},
    "mllama_text_model": {"num_hidden_layers": 3, "cross_attention_layers": [1]},
    "mllama_vision_model": {
        "intermediate_layers_indices": [0, 1], "vision_output_dim": 96, "num_global_layers": 1, "max_num_tiles": 2,
        "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]], "attention_heads": 4, "intermediate_size": 48,
    },
    "molmo2_adapter": {"vision_feature_layer": [1, 0]},
    "muse_spark_audio": {"patch_sizes": [2, 2], "hidden_sizes": [8, 8], "depths": [1, 1]},
    "musicgen_decoder": {"num_codebooks": 1},
    "musicgen_melody_decoder": {"num_codebooks": 1},
    "nemotron": {"num_key_value_heads": 2},
    "nemotron_h": {
        "num_hidden_layers": 3, "layers_block_type": ["mamba", "attention", "mlp"], "mamba_num_heads": 8,
    },
    "moonshine": {"encoder_num_key_value_heads": 4, "decoder_num_key_value_heads": 4},
    "pix2struct_vision_model": {"patch_embed_hidden_size": 48},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "qwen2_5_omni_thinker": _STARTS,
    "qwen3_omni_moe_thinker": _STARTS,
    "qwen4_exp_text": {
        "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 16,
        "indexer_compress_ratio": 4, "ple_layer_ids": [], "ngram_vocab_size_base": 64, "split_ngram_parts": 2,
    },
    "reformer": {
        "is_decoder": True, "axial_pos_embds_dim": [16, 16], "axial_pos_shape": [16, 16],
        "attn_layers": ["local", "local"], "local_attn_chunk_length": 8, "feed_forward_size": 48,
    },
    "speech-encoder-decoder": {
        "encoder": _part("wav2vec2", vocab_size=VOCAB_SIZE, **_CONV), "decoder": _DECODER, **_START,
    },
    "speech_to_text": {"input_feat_per_channel": 8, "conv_channels": 16, **_START},
    "speecht5": {**_CONV, **_START},
    "step3p5": {"sliding_window": 8},
    "vision-encoder-decoder": {
        "encoder": _part("vit", image_size=16, patch_size=4), "decoder": _DECODER, **_START,
    },
    "xlstm": {"num_heads": 4, "qk_dim_factor": 0.5, "v_dim_factor": 1.0},
    "xmod": {"default_language": "en_XX", "languages": ["en_XX"]},
    "zamba": {
        "num_hidden_layers": 5, "attention_hidden_size": 64, "attention_head_dim": 16, "mamba_d_state": 4,
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid", "hybrid"], "n_mamba_heads": 2,
    },
    "zamba2": {
        "num_hidden_layers": 5, "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid", "hybrid"],
        "mamba_d_state": 4, "num_mem_blocks": 1, "mamba_headdim": 8, "n_mamba_heads": 8, "mamba_ngroups": 1,
        "use_shared_attention_adapter": False,
    },
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip
"""Configuration options by model type."""

PROMPTS = [[5, 9, 14, 3, 27, 7, 7, 8], [8, 6, 11], [12, 40, 33, 18]]
