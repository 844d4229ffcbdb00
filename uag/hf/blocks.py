"""Whether a model computes a block of tokens as it computes single ones, and for how many tokens."""

import inspect
from collections.abc import Iterator
from types import CodeType
from typing import Any

from transformers.cache_utils import DynamicSlidingWindowLayer

from uag.hf import passes, required_names, wrapped
from uag.hf.cache import caches
from uag.hf.inspection import modules, parameters, per_call
from uag.hf.models import decoder_parts, default_cache_refusals, state_layers

_ONE_TOKEN = {
    "big_bird": "changes its attention in its first pass",
    "blt": "splits a block into other patches than single bytes",
    "cpmant": "treats every token after its cache as the last one, so candidates attend to later ones",
    "doge": "selects its keys by rank, which depends on the length of a pass",
    "flaubert": "appends its own mask token, and is bidirectional",
    "fsmt": "accepts only one token at a time after its cache",
    "git": "prepends slots to its mask once it has a cache, which makes padding visible",
    "prophetnet": "accepts only one token at a time after its cache",
    "xlm": "appends its own mask token, and is bidirectional",
}
"""Model types whose forward cannot process a block of candidates, and why."""

if required_names.release() < (5, 23):
    _ONE_TOKEN |= {
        "nllb-moe": "draws random numbers at every pass (before transformers 5.23)",
        "umt5": "computes different logits for a block than for single tokens (before transformers 5.23)",
    }

_BLOCKS_BEHIND_STATE = {
    "bailing_hybrid", "bamba", "falcon_h1", "granitemoehybrid", "inkling_text", "inkling2_text", "kimi_linear", "lfm2",
    "lfm2_moe", "lfm3", "mamba2", "nemotron_h", "olmo_hybrid", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text",
    "zamba2", "zaya",
}  # fmt: skip
"""Linear-attention model types that compute the same logits for a block after a state as for single tokens. The others
ignore the state (Mamba, Jamba, Zamba, RecurrentGemma) or are untested."""

_NO_LIMIT = 0.0, float("inf")

BEHIND_STATE = "computes different logits for a block after its recurrent state than for single tokens"

_WINDOW_MASKS = {"create_sliding_window_causal_mask", "create_chunked_causal_mask", "create_masks_for_generate"}
"""transformers' functions of which a forward calls one, if it masks what lies outside a layer's window."""

_MOST_COPIED = 2 << 30  # bytes of experts' weights that a layer may copy for the tokens of a pass


def block_refusal(model: Any) -> str:
    """Return why a model's forward cannot process a block of tokens after its cache, or an empty string."""
    if not passes.has_usual_loop(model):
        return "has its own decoding loop"
    if _masks_no_window(model):
        return "applies no window mask, although its cache keeps a window"
    config = model.config
    return _ONE_TOKEN.get(config.model_type) or _ONE_TOKEN.get(config.get_text_config(decoder=True).model_type, "")


@per_call
def candidates_refusal(model: Any) -> str:
    """Return why the logits of a block of candidates differ from those of single tokens, or an empty string."""
    refused = block_refusal(model)
    if refused:
        return refused
    config = model.config.get_text_config(decoder=True)
    if getattr(config, "cross_attention_layers", None):
        return "keeps the keys of an image in its cache, beside those of the text"
    takes_blocks = config.model_type in _BLOCKS_BEHIND_STATE
    if state_layers(model) and not default_cache_refusals(model) and not takes_blocks:
        return BEHIND_STATE
    # Modules must have `is_decoder` too: GPT-NeoX's config inherits it, although the model is causal. Gemma 4's
    # use_bidirectional_attention="vision" concerns the tokens of images, not text.
    signs = [("use_bidirectional_attention", True), ("is_causal", False)]
    if any(vars(module).get("is_decoder") is False for module in modules(model)):
        signs.append(("is_decoder", False))
    for name, value in signs:
        if not model.config.is_encoder_decoder and getattr(config, name, None) is value:
            return f"is bidirectional ({name}={value} in its config)"
    if "padding_cache" in wrapped.inputs_of(model):
        return "encodes audio at every step, and its encoder cannot be rolled back after a rejected candidate"
    return next(filter(None, map(_routing_refusal, modules(model))), "")


@per_call
def limited_parts(model: Any) -> list[Any]:
    """Return the layers that limit the time steps of blocks, but not those of single tokens (Nemotron-H, Zamba 2)."""
    return [part for part in modules(model) if tuple(vars(part).get("time_step_limit") or _NO_LIMIT) != _NO_LIMIT]


def _masks_no_window(model: Any) -> bool:
    """Whether the cache's layers keep a window, but no forward masks one: single tokens see fewer positions."""
    if not any(isinstance(layer, DynamicSlidingWindowLayer) for layer in caches.default_layers(model)):
        return False
    config, parts = model.config.get_text_config(decoder=True), decoder_parts(model)
    parts = [part for part in parts if vars(part).get("config") is config] or parts  # without an image encoder's
    forwards = {inspect.unwrap(type(part).forward) for part in parts}
    return _WINDOW_MASKS.isdisjoint(name for forward in forwards for name in _names_in(forward.__code__))


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names_in(inner)


def _routing_refusal(module: Any) -> str:
    known = vars(module)
    if known.get("second_expert_policy") in ("random", "sampling"):
        return f"draws random numbers to choose experts (second_expert_policy={known['second_expert_policy']!r})"
    share = known.get("moe_eval_capacity_token_fraction")
    if share is not None and (share < 1.0 or module.training):
        return f"drops tokens by the number of tokens in a pass (moe_eval_capacity_token_fraction={share})"
    return ""


@per_call
def most_tokens(model: Any) -> int | None:
    """Return the most tokens per row of a pass that are computed like single tokens, by the capacity of experts."""
    routers = [vars(module) for module in modules(model) if "moe_eval_capacity_token_fraction" not in vars(module)]
    capacities = [known["expert_capacity"] for known in routers if isinstance(known.get("expert_capacity"), int)]
    return max(min(capacities), 1) if capacities else None


@per_call
def most_copied(model: Any) -> int | None:
    """Return the most tokens of a pass whose experts' weights may be copied, as `batched_mm` does, or None."""
    kinds = ("batched_mm",) if model.device.type == "cpu" else ("batched_mm", "grouped_mm")
    if model.config.get_text_config(decoder=True)._experts_implementation not in kinds:
        return None
    by_layer = [
        [each for each in parameters(part).values() if getattr(each, "ndim", 0) == 3] for part in modules(model)
    ]
    sizes = [sum(each[0].nbytes for each in layer) for layer in by_layer if layer]
    num_chosen = [vars(part)["top_k"] for part in modules(model) if isinstance(vars(part).get("top_k"), int)]
    return max(_MOST_COPIED // (max(sizes) * max(num_chosen, default=1)), 1) if sizes else None


@per_call
def has_experts(model: Any) -> bool:
    """Whether a router sends tokens to different experts, so that a product's rows depend on the other tokens."""
    names = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    counts = [vars(module).get(name) for module in modules(model) for name in names]
    return any(isinstance(count, int) and count > 1 for count in counts)


@per_call
def uncounted_id(model: Any) -> int | None:
    """Return the id that advances positions only as a single token, as padding does in RoBERTa, or None."""
    padded = (part for part in modules(model) if vars(part).get("padding_idx") is not None)
    return next((part.padding_idx for part in padded if hasattr(part, "create_position_ids_from_input_ids")), None)
