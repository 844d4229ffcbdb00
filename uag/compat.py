"""Every inner name of transformers that uag touches, in one place.

`check()` runs at install time and when an assistant is made, so that a release that renamed something is refused with
its name instead of failing in the middle of a generation.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

import torch
import transformers
from transformers import DynamicCache, EncoderDecoderCache, cache_utils
from transformers.cache_utils import DynamicSlidingWindowLayer
from transformers.generation import candidate_generator
from transformers.generation import utils as generation_utils

from uag.buffered import BufferedLayer, begin_buffering
from uag.errors import CompatibilityError, UnsupportedError

OLDEST, NEWEST = "5.16.1", "5.23"

GENERATION_METHODS: dict[str, tuple[str, ...]] = {
    "generate": ("inputs", "generation_config", "assistant_model", "streamer", "custom_generate"),
    "_prefill": ("input_ids", "generation_config", "model_kwargs", "is_first_iteration"),
    "_update_model_kwargs_for_generation": ("outputs", "model_kwargs", "is_encoder_decoder", "num_new_tokens"),
    "_get_candidate_generator": (
        "input_ids",
        "inputs_tensor",
        "assistant_model",
        "target_tokenizer",
        "assistant_tokenizer",
    ),
    "_optimize_model_for_decode": (),
    "_supports_default_dynamic_cache": (),
    "prepare_inputs_for_generation": ("input_ids", "next_sequence_length", "is_first_iteration"),
}
"""Methods that uag calls or answers for, with the parameters that it relies on."""

_REWINDABLE = (
    BufferedLayer,
    *(
        getattr(cache_utils, name)
        for name in ("DynamicLayer", "DynamicSlidingWindowLayer", "DynamicIndexedLayer", "DummyLayer")
        if hasattr(cache_utils, name)
    ),
)
_ONE_TOKEN = {
    "cpmant": "takes every token behind its cache for the last one, and shows candidates those that follow them",
    "flaubert": "predicts behind a mask token of its own, and reads text in both directions",
    "prophetnet": "takes one token at a time behind its cache",
    "xlm": "predicts behind a mask token of its own, and reads text in both directions",
}
"""Models by type that plain decoding serves but whose forward takes no block of candidates."""

if tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 19):
    _ONE_TOKEN["big_bird"] = "shows candidates those that follow them (transformers 5.19 no longer does)"
_WINDOW_MASKS = ("create_sliding_window_causal_mask", "create_chunked_causal_mask", "create_masks_for_generate")
CANDIDATE_FUNCTIONS = ("CandidateGenerator", "_prepare_attention_mask", "_prepare_position_ids")
CACHE_METHODS = ("crop", "activate_past_recording", "get_seq_length")


def check() -> None:
    """Look for every inner name that uag needs.

    Raises:
        CompatibilityError: a name is missing; the message lists it and the supported releases.
    """
    missing = []
    for name, parameters in GENERATION_METHODS.items():
        method = getattr(generation_mixin(), name, None)
        known = {} if method is None else inspect.signature(method).parameters
        if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in known.values()):
            continue  # somebody else's wrapper around it hides its parameters
        missing += [f"GenerationMixin.{name}"] if method is None else []
        missing += [f"the parameter {p!r} of GenerationMixin.{name}" for p in parameters if method and p not in known]
    missing += [f"Cache.{name}" for name in CACHE_METHODS if not hasattr(transformers.Cache, name)]
    missing += [name for name in ("GenerationMode", "ALL_CACHE_NAMES") if not hasattr(generation_utils, name)]
    missing += [name for name in CANDIDATE_FUNCTIONS if not hasattr(candidate_generator, name)]
    if missing:
        raise CompatibilityError(
            f"transformers {transformers.__version__} lacks {', '.join(missing)}, which uag needs. "
            f"Supported are {OLDEST} to {NEWEST}: pip install 'transformers>={OLDEST},<5.24'."
        )


def generation_mixin() -> Any:
    """Return the class that owns `generate`."""
    return generation_utils.GenerationMixin


def streams_before_criteria() -> bool:
    """Whether plain decoding hands a step to the streamer before it asks the criteria; since 5.23 it does so after."""
    return not hasattr(generation_utils, "StopCheck")


def is_synced(model: Any) -> bool:
    """Whether `generate` keeps the ranks of a sharded model in step when its caller does not say."""
    found = model._extract_generation_mode_kwargs(None, {}, None, None, None)
    return bool(found.get("synced_gpus"))


def decode_plainly(model: Any, input_ids: Any, **prepared: Any) -> Any:
    """Run transformers' own loop; with `synced_gpus` a rank that is done goes on until all are."""
    return model._sample(input_ids, **prepared)


def parallel_groups(model: Any) -> tuple[Any, ...]:
    """Return the process groups in which a model is split over ranks (tensor, pipeline parallel); empty for none.

    The ranks of these run every pass together on the same input. Ranks of FSDP do not (see `is_synced`).
    """
    mesh = getattr(model, "_device_mesh", None)
    if mesh is None:
        return ()
    if mesh.ndim == 1:
        is_split = mesh.size() > 1 and (mesh.mesh_dim_names or ("tp",))[0] in ("tp", "pp")
        return (mesh.get_group(),) if is_split else ()
    names = [name for name in ("tp", "pp") if name in (mesh.mesh_dim_names or ())]
    return tuple(mesh.get_group(name) for name in names if mesh[name].size() > 1)


def is_pipelined(model: Any) -> bool:
    """Whether a model's layers lie on several ranks.

    Ranks without the first layer then take their cache for empty, and mask a block of candidates wrongly.
    """
    mesh = getattr(model, "_device_mesh", None)
    return mesh is not None and "pp" in (mesh.mesh_dim_names or ()) and mesh["pp"].size() > 1


def is_compiled(model: Any) -> bool:
    """Whether any part of a model runs through `torch.compile`: its graphs depend on the classes that they saw."""
    return any(
        getattr(module, "_compiled_call_impl", None) is not None
        or hasattr(module.forward, "_torchdynamo_orig_callable")
        for module in model.modules()
    )


def cache_names() -> tuple[str, ...]:
    """Return the names under which models return their cache."""
    return tuple(generation_utils.ALL_CACHE_NAMES)


def dynamic_cache() -> Any:
    """Return a cache whose layers keep every position, whatever the model's window, and grow in place."""
    cache = DynamicCache()
    begin_buffering(cache)
    return cache


def encoder_decoder_cache() -> Any:
    """Return the same for an encoder-decoder."""
    return EncoderDecoderCache(dynamic_cache(), DynamicCache())


def option(model: Any, generation_config: Any, kwargs: dict[str, Any], name: str) -> Any:
    """Return a generation option as `generate` will see it: keyword, then the given config, then the model's own."""
    if name in kwargs:
        return kwargs[name]
    value = getattr(generation_config, name, None)
    return value if value is not None else getattr(model.generation_config, name, None)


def head_size(model: Any) -> int:
    """Return the number of scores that a model's head gives; it may differ from its config and its tokenizer."""
    weight = getattr(model.get_output_embeddings(), "weight", None)
    if weight is not None and weight.dim() == 2:
        return int(weight.shape[0])
    return int(model.config.get_text_config(decoder=True).vocab_size)


def default_cache_refusals(model: Any) -> str:
    """Say what of the cache that `generate` would give a model cannot be rewound; empty where all can."""
    takes_cache = getattr(model, "_supports_default_dynamic_cache", lambda: True)()
    if getattr(model, "_is_stateful", False) or not takes_cache:
        return "recurrent state"
    return _layers_other_than(_REWINDABLE, model)


def unusual_layers(model: Any) -> str:
    """Name the cache layers of a model that do not keep every position; empty where all do."""
    return _layers_other_than((cache_utils.DynamicLayer,), model)


def _layers_other_than(kinds: tuple[type, ...], model: Any) -> str:
    """Name the layers, of other kinds, of the cache that `generate` would give a model."""
    try:
        layers = DynamicCache(config=model.config.get_text_config(decoder=True)).layers
    except (AttributeError, KeyError, TypeError, ValueError):
        return ""  # the config says nothing of its layers: they are plain ones
    return ", ".join(sorted({type(layer).__name__ for layer in layers if type(layer) not in kinds}))


def block_refusal(model: Any) -> str:
    """Say why a model's forward takes no block of tokens behind its cache; empty where it does."""
    return _ONE_TOKEN.get(model.config.get_text_config(decoder=True).model_type, "")


def candidates_refusal(model: Any) -> str:
    """Say why a block of candidates gives other logits than one token after the other; empty where it does not."""
    refused = block_refusal(model)
    if refused:
        return refused
    config = model.config.get_text_config(decoder=True)
    # Only where the modules look at it, too: GPT-NeoX inherits the entry and is causal all the same.
    if (
        not model.config.is_encoder_decoder
        and getattr(config, "is_decoder", None) is False
        and any(vars(module).get("is_decoder") is False for module in model.modules())
    ):
        return "reads text in both directions (its config says is_decoder=False)"
    if "Sliding" in unusual_layers(model):
        sources = {type(module).__module__ for module in model.modules()}
        if not any(hasattr(sys.modules.get(source), name) for source in sources for name in _WINDOW_MASKS):
            return "masks no window, while its cache keeps one"
    return ""


def extend_kwargs(model_kwargs: dict[str, Any], num_new: int, is_encoder_decoder: bool) -> dict[str, Any]:
    """Return a copy of `model_kwargs` whose masks, positions and token types reach `num_new` tokens further.

    Each is extended from its own length: the ids are shorter where the prompt came as embeddings or lies in a cache.
    """
    extended: dict[str, Any] = dict(model_kwargs)
    if num_new == 0:
        return extended
    mask = extended.get("decoder_attention_mask" if is_encoder_decoder else "attention_mask")
    if mask is not None:
        extended = candidate_generator._prepare_attention_mask(extended, mask.shape[1] + num_new, is_encoder_decoder)
    key = "decoder_position_ids" if is_encoder_decoder else "position_ids"
    if extended.get(key) is not None:
        extended = candidate_generator._prepare_position_ids(
            extended, extended[key].shape[-1] + num_new, is_encoder_decoder
        )
    for name, is_repeated in (("token_type_ids", True), ("mm_token_type_ids", False)):
        types = extended.get(name)
        if types is not None:  # text goes on with the last type; image markers do not
            last = types[:, -1:] if is_repeated else types.new_zeros((types.shape[0], 1))
            extended[name] = torch.cat([types, last.expand(-1, num_new)], dim=-1)
    return extended


def windows(cache: Any) -> list[int | None]:
    """Return how many positions each self-attention layer of a cache sees, None for all."""
    if isinstance(cache, EncoderDecoderCache):
        cache = cache.self_attention_cache
    return [layer.sliding_window if is_sliding(layer) else None for layer in getattr(cache, "layers", ())]


def check_cache(cache: Any) -> None:
    """Refuse a cache that cannot be put back as it was before a rejected candidate.

    Raises:
        UnsupportedError: a static, quantized or recurrent cache, or none at all.
    """
    if cache is None:
        raise UnsupportedError(
            "The target keeps no cache that can be rewound (use_cache=False, or a recurrent model), so candidates "
            "cannot be checked. Pass use_cache=True, or call generate without an assistant."
        )
    if isinstance(cache, EncoderDecoderCache):
        cache = cache.self_attention_cache
    layers = getattr(cache, "layers", None)
    refused = sorted({type(layer).__name__ for layer in layers or () if type(layer) not in _REWINDABLE})
    if layers is None or refused or not isinstance(cache, DynamicCache):
        what = ", ".join(refused) or type(cache).__name__
        raise UnsupportedError(
            f"The target's cache ({type(cache).__name__} with {what}) cannot be rewound after a rejected candidate. "
            "Use the default dynamic cache (drop cache_implementation and past_key_values), or call generate without "
            "an assistant."
        )


def self_attention_layers(cache: Any) -> list[Any]:
    """Return the layers of a cache that hold keys and values of the generated text."""
    return [layer for layer in _layers(cache) if getattr(layer, "keys", None) is not None]


def _layers(cache: Any) -> Any:
    if isinstance(cache, EncoderDecoderCache):
        cache = cache.self_attention_cache
    return getattr(cache, "layers", None) or ()


def is_sliding(layer: Any) -> bool:
    """Whether a layer keeps a window only."""
    return isinstance(layer, DynamicSlidingWindowLayer)


def mark_cache(kwargs: dict[str, Any]) -> None:
    """Mark a cache of the caller's own as such, as 5.23 does by itself."""
    for name in cache_names():
        if isinstance(kwargs.get(name), transformers.Cache):
            kwargs[name]._is_user_defined = True


def outlives_call(cache: Any) -> bool:
    """Whether a cache belongs to the caller: it must end as plain decoding leaves it.

    Before 5.23 an empty cache that came through bare `custom_generate` cannot be told from the default one.
    """
    if cache is None or getattr(cache, "_is_user_defined", False):
        return cache is not None
    try:
        return bool(cache.get_seq_length() > 0)
    except ValueError:  # recurrent layers only: they count nothing, and are never put back
        return False


def crop(cache: Any, num_tokens: int) -> None:
    """Drop the last `num_tokens` positions; with 0, sliding layers that record still shrink to their window.

    With 0 a cache may be of any kind, or None: without a draft nothing is recorded and nothing is ever dropped.
    """
    layers = _layers(cache)
    if layers and not any(getattr(layer, "is_initialized", True) for layer in layers):
        return  # a model that fills no cache; before transformers 5.20 such layers cannot be cropped
    if num_tokens or any(getattr(layer, "record_past", False) for layer in layers):
        cache.crop(-num_tokens)


def stop_recording(cache: Any) -> None:
    """Let sliding layers drop what leaves their window again."""
    for layer in _layers(cache):
        if hasattr(layer, "record_past"):
            layer.record_past = False
