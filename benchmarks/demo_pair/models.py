"""The shapes of target and draft, how the target grows, and how it writes text in large batches."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from benchmarks.demo_pair.vocabularies import DRAFT_VOCAB, TARGET_VOCAB


def target_config(num_layers: int) -> LlamaConfig:
    """Return the target's shape at one depth."""
    return LlamaConfig(
        vocab_size=TARGET_VOCAB, hidden_size=128, intermediate_size=256, num_hidden_layers=num_layers,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True, max_position_embeddings=8192,
        bos_token_id=0, eos_token_id=0, pad_token_id=None,
    )  # fmt: skip


def draft_config() -> LlamaConfig:
    """Return the draft's shape."""
    return LlamaConfig(
        vocab_size=DRAFT_VOCAB, hidden_size=192, intermediate_size=512, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=6, tie_word_embeddings=True, max_position_embeddings=8192, bos_token_id=1, eos_token_id=1,
        pad_token_id=None,
    )  # fmt: skip


def doubled(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """Return a model with a copy of each layer behind it that adds nothing yet: the same function, twice as deep."""
    grown = LlamaForCausalLM(target_config(2 * model.config.num_hidden_layers))
    grown.model.embed_tokens.load_state_dict(model.model.embed_tokens.state_dict())
    grown.model.norm.load_state_dict(model.model.norm.state_dict())
    for index, layer in enumerate(model.model.layers):
        for copy in grown.model.layers[2 * index : 2 * index + 2]:
            copy.load_state_dict(layer.state_dict())
        torch.nn.init.zeros_(grown.model.layers[2 * index + 1].self_attn.o_proj.weight)
        torch.nn.init.zeros_(grown.model.layers[2 * index + 1].mlp.down_proj.weight)
    return grown


@torch.inference_mode()
def write_on(model: LlamaForCausalLM, prompts: Tensor, num_new: int, temperatures: Tensor, seed: int) -> Tensor:
    """Continue a batch of prompts of one length: [rows, prompt_length + num_new].

    Args:
        model: The target.
        prompts: [rows, prompt_length], int64.
        num_new: Tokens to write.
        temperatures: [rows]; 0 is greedy.
        seed: Seed of the sampling.

    A loop of its own, since the library's dynamic cache copies all keys and values at every step.
    """
    config = model.config
    rows, prompt_length = prompts.shape
    length = prompt_length + num_new
    head_dim = config.hidden_size // config.num_attention_heads
    shape = (config.num_hidden_layers, 2, rows, config.num_key_value_heads, length, head_dim)
    cache = torch.empty(shape)
    generator = torch.Generator().manual_seed(seed)
    ids = torch.cat([prompts, prompts.new_zeros(rows, num_new)], dim=1)
    start = 0
    for end in range(prompt_length, length):
        x = model.model.embed_tokens(ids[:, start:end])
        cos, sin = model.model.rotary_emb(x, torch.arange(start, end)[None])
        for layer, (keys, values) in zip(model.model.layers, cache, strict=True):
            attention = layer.self_attn
            h = layer.input_layernorm(x)
            q, k, v = (
                project(h).view(rows, end - start, -1, head_dim).transpose(1, 2)
                for project in (attention.q_proj, attention.k_proj, attention.v_proj)
            )
            q, k = apply_rotary_pos_emb(q, k, cos, sin)
            keys[:, :, start:end], values[:, :, start:end] = k, v
            if start:  # query heads of one key head become query positions: no key is copied
                q = q.view(rows, config.num_key_value_heads, -1, head_dim)
                mixed = F.scaled_dot_product_attention(q, keys[:, :, :end], values[:, :, :end])
                mixed = mixed.view(rows, -1, 1, head_dim)
            else:
                mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + attention.o_proj(mixed.transpose(1, 2).flatten(2))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        logits = model.lm_head(model.model.norm(x[:, -1]))
        probs = (logits / temperatures.clamp_min(1e-3)[:, None]).softmax(-1)
        noise = torch.empty_like(probs).exponential_(generator=generator)
        noise[temperatures == 0] = 1.0
        ids[:, end] = (probs / noise).argmax(-1)
        start = end
    return ids
