"""Capabilities and limitations of models."""

import inspect
from collections.abc import Iterator
from types import CodeType
from typing import Any

from transformers.cache_utils import DynamicSlidingWindowLayer

from uag.hf import names, passes, weights, wrapped
from uag.hf.cache import caches
from uag.hf.cache.caches import REWINDABLE
from uag.hf.cache.states import KEPT_BY_STATE
from uag.hf.inspection import modules, parameters, per_call

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

if names.release() < (5, 23):
    _ONE_TOKEN |= {
        "nllb-moe": "draws random numbers at every pass (before transformers 5.23)",
        "umt5": "computes different logits for a block than for single tokens (before transformers 5.23)",
    }

_BLOCKS_BEHIND_STATE = {
    "bailing_hybrid", "bamba", "falcon_h1", "granitemoehybrid", "inkling_text", "inkling2_text", "kimi_linear", "lfm2",
    "lfm2_moe", "lfm3", "mamba2", "olmo_hybrid", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "zaya",
}  # fmt: skip
"""Linear-attention model types that compute the same logits for a block after a state as for single tokens.

The others ignore the state (Mamba, Jamba, Zamba, RecurrentGemma), limit time steps only in blocks (Nemotron-H,
Zamba 2), or are untested.
"""

_WINDOW_MASKS = {"create_sliding_window_causal_mask", "create_chunked_causal_mask", "create_masks_for_generate"}
"""transformers' functions of which a forward calls one, if it masks what lies outside a layer's window."""

_MOST_COPIED = 2 << 30
"""Bytes of experts' weights that a layer may copy for the tokens of a pass. Increase to verify more candidates at once;
decrease to use less memory."""

_PLAIN_LAYERS = tuple(set(REWINDABLE) - set(KEPT_BY_STATE))

_UNBOUNDED = 1 << 30


def tensor_parallel_group(model: Any) -> Any:
    """Return the process group that a model's layers are split over, or None.

    Its ranks run every pass together on the same input, unlike FSDP ranks (see `is_synced`).
    """
    mesh = getattr(model, "_device_mesh", None)
    if mesh is None or "tp" not in (mesh.mesh_dim_names or ("tp",)):
        return None
    part = mesh if mesh.ndim == 1 else mesh["tp"]
    return part.get_group() if part.size() > 1 else None


def is_pipelined(model: Any) -> bool:
    """Whether a model's layers are spread over ranks; those without the first one mask a block incorrectly."""
    mesh = getattr(model, "_device_mesh", None)
    return mesh is not None and "pp" in (mesh.mesh_dim_names or ()) and mesh["pp"].size() > 1


@per_call
def is_compiled(model: Any) -> bool:
    """Whether any part of a model is compiled: its graphs depend on the classes that they were traced with."""
    parts = modules(model)
    forwards = [getattr(kind, "forward", None) for kind in {*map(type, parts)}]
    forwards += [vars(module)["forward"] for module in parts if "forward" in vars(module)]
    has_compiled_call = any(vars(module).get("_compiled_call_impl") is not None for module in parts)
    return has_compiled_call or any(hasattr(forward, "_torchdynamo_orig_callable") for forward in forwards)


def head_size(model: Any) -> int:
    """Return the number of logits of a model's head, which may differ from its config and its tokenizer."""
    head = model.get_output_embeddings()
    # Bark and CLVP do not return their head.
    size = weights.num_outputs(getattr(model, "lm_head", None) if head is None else head)
    return size if size is not None else int(model.config.get_text_config(decoder=True).vocab_size)


def ordinary_ids(model: Any, num: int, part: int = 3) -> list[int]:
    """Return ids for a trial, from the vocabulary's entry `size // part` on, where few ids are special."""
    size = int(wrapped.weight_of(model.get_input_embeddings()).shape[0])
    return [(size // part + 7 * index) % size for index in range(num)]


@per_call
def default_cache_refusals(model: Any) -> str:
    """Return the names of the default cache's layers that cannot be rolled back, or an empty string."""
    takes_cache = getattr(model, "_supports_default_dynamic_cache", lambda: True)()
    if not takes_cache or (getattr(model, "_is_stateful", False) and not state_layers(model)):
        return "recurrent state"
    return layers_other_than(REWINDABLE, model)


@per_call
def state_layers(model: Any) -> str:
    """Return the names of the default cache's layers that keep a state, or an empty string."""
    return layers_other_than(_PLAIN_LAYERS, model)


def layers_other_than(kinds: tuple[type, ...], model: Any) -> str:
    """Return the names of the default cache's layers of other kinds, or an empty string."""
    others = set(map(type, caches.default_layers(model))).difference(kinds)
    return ", ".join(sorted(kind.__name__ for kind in others))


def windows(model: Any) -> dict[str, int | None]:
    """Return the window of each type of attention layer, None for all positions; by "" if one mask serves all layers.

    Empty if a model's forward takes no masks by type.
    """
    config = model.config.get_text_config(decoder=True)
    sizes = [getattr(layer, "sliding_window", None) for layer in caches.default_layers(model)] or [None]
    types = getattr(config, "layer_types", None) or [""]
    forwards = (inspect.unwrap(type(module).forward) for module in modules(model))
    if not {"", "full_attention", "sliding_attention"}.issuperset(types):
        return {}
    if len(set(sizes)) == 1:
        return {"": sizes[0]}
    takes_types = any("causal_mask_mapping" in forward.__code__.co_varnames for forward in forwards)
    return dict(zip(types, sizes, strict=False)) if takes_types else {}


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
    # Mamba 2 limits time steps only in blocks; by default there is no limit.
    has_limit = tuple(getattr(config, "time_step_limit", None) or (0.0, float("inf"))) != (0.0, float("inf"))
    takes_blocks = config.model_type in _BLOCKS_BEHIND_STATE and not has_limit
    if state_layers(model) and not default_cache_refusals(model) and not takes_blocks:
        return "computes different logits for a block after its recurrent state than for single tokens"
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


def _masks_no_window(model: Any) -> bool:
    """Whether the cache's layers keep a window, but no forward masks one: single tokens see fewer positions."""
    if not any(isinstance(layer, DynamicSlidingWindowLayer) for layer in caches.default_layers(model)):
        return False
    config, parts = model.config.get_text_config(decoder=True), _decoder_parts(model)
    parts = [part for part in parts if vars(part).get("config") is config] or parts  # without an image encoder's
    forwards = {inspect.unwrap(type(part).forward) for part in parts}
    return _WINDOW_MASKS.isdisjoint(name for forward in forwards for name in _names_in(forward.__code__))


def _names_in(code: CodeType) -> Iterator[str]:
    """Yield the names that a function uses, also in its lambdas."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names_in(inner)


def _decoder_parts(model: Any) -> list[Any]:
    """Return the modules of an encoder-decoder's decoder, or of the model itself; none of a config."""
    if not hasattr(model, "modules"):
        return []
    return list(model.get_decoder().modules()) if model.config.is_encoder_decoder else modules(model)


def _routing_refusal(module: Any) -> str:
    """Return why a router treats the tokens of a block differently from single tokens, or an empty string."""
    known = vars(module)
    if known.get("second_expert_policy") in ("random", "sampling"):
        return f"draws random numbers to choose experts (second_expert_policy={known['second_expert_policy']!r})"
    share = known.get("moe_eval_capacity_token_fraction")
    if share is not None and (share < 1.0 or module.training):
        return f"drops tokens by the number of tokens in a pass (moe_eval_capacity_token_fraction={share})"
    return ""


@per_call
def most_tokens(model: Any) -> int | None:
    """Return the most tokens per row of a pass that are computed like single tokens, or None without a limit.

    A router with a capacity drops the tokens of a row that come after an expert's capacity is used up. NLLB's routers
    set theirs in each pass (`_routing_refusal`).
    """
    routers = [vars(module) for module in modules(model) if "moe_eval_capacity_token_fraction" not in vars(module)]
    capacities = [known["expert_capacity"] for known in routers if isinstance(known.get("expert_capacity"), int)]
    return max(min(capacities), 1) if capacities else None


@per_call
def most_copied(model: Any) -> int | None:
    """Return the most tokens of a pass whose experts' weights may be copied, or None if none are.

    transformers' `batched_mm`, with which it decodes on accelerators, copies the weights of each token's experts.
    """
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
    """Return the id that does not advance positions within a pass, like padding in RoBERTa, or None.

    As a single token after a cache, such an id does advance them, so a block must end with it.
    """
    padded = (part for part in modules(model) if vars(part).get("padding_idx") is not None)
    return next((part.padding_idx for part in padded if hasattr(part, "create_position_ids_from_input_ids")), None)


def kinds_of(model: Any) -> tuple[Any, ...]:
    """Return what selects a model's kernels: layer classes, dtype, device and attention."""
    return tuple(map(type, modules(model))), model.dtype, model.device.type, attention_of(model)


def attention_of(model: Any) -> str:
    """Return the name of a model's attention implementation ("sdpa", "eager", ...)."""
    name: str = model.config.get_text_config(decoder=True)._attn_implementation
    return name


def can_compile(model: Any) -> bool:
    """Whether transformers can compile a model as one graph."""
    return bool(getattr(model, "_can_compile_fullgraph", False))


def max_positions(model: Any) -> int:
    """Return the maximum number of positions of a model or a config; very large if it has no limit."""
    config = getattr(model, "config", model).get_text_config(decoder=True)
    for part in _decoder_parts(model):
        table: Any = getattr(part, "position_embeddings", None)
        if hasattr(part, "create_position_ids_from_input_ids") and hasattr(table, "num_embeddings"):
            return int(table.num_embeddings) - int(part.padding_idx) - 1  # positions begin after the padding (RoBERTa)
    if hasattr(config, "relative_attention_num_buckets"):
        return _UNBOUNDED  # T5's positions are relative; n_positions is only its training length
    for name in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx"):
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return _UNBOUNDED
