"""What a model is made of: its ranks, head, positions, compiled parts and the layers of its default cache."""

import inspect
from typing import Any

from uag.hf import weights, wrapped
from uag.hf.cache import caches
from uag.hf.cache.caches import REWINDABLE
from uag.hf.cache.states import KEPT_BY_STATE
from uag.hf.inspection import modules, per_call

_PLAIN_LAYERS = tuple(set(REWINDABLE) - set(KEPT_BY_STATE))

_UNBOUNDED = 1 << 30


def tensor_parallel_group(model: Any) -> Any:
    """Return the process group that a model's layers are split over, whose ranks run every pass together, or None."""
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
    forwards += [own for module in parts if (own := vars(module).get("forward")) is not None]
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


def decoder_parts(model: Any) -> list[Any]:
    """Return the modules of an encoder-decoder's decoder, or of the model itself; none of a config."""
    if not hasattr(model, "modules"):
        return []
    return list(model.get_decoder().modules()) if model.config.is_encoder_decoder else modules(model)


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


@per_call
def max_positions(model: Any) -> int:
    """Return the maximum number of positions of a model or a config; very large if it has no limit."""
    config = getattr(model, "config", model).get_text_config(decoder=True)
    for part in decoder_parts(model):
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
