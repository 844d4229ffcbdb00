"""transformers' code around a target's passes: preparation, masks, positions and options."""

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
from transformers import CompileConfig, GenerationMixin
from transformers.generation import candidate_generator
from transformers.generation import utils as generation_utils

from uag.hf.cache.caches import CACHE_INPUTS

T = TypeVar("T")


def streams_before_criteria() -> bool:
    """Whether plain decoding streams a step before it calls the stopping criteria (transformers before 5.23)."""
    return not hasattr(generation_utils, "StopCheck")


def is_synced(model: Any) -> bool:
    """Whether `generate` synchronizes the ranks of a sharded model by default."""
    mode_kwargs = model._extract_generation_mode_kwargs(None, {}, None, None, None)
    return bool(mode_kwargs.get("synced_gpus"))


def has_usual_loop(model: Any) -> bool:
    """Whether plain decoding runs in transformers' common loop; some audio models have loops of their own."""
    return getattr(type(model), "_sample", GenerationMixin._sample) is GenerationMixin._sample


def sample_plainly(model: Any, input_ids: Any, **prepared: Any) -> Any:
    """Run transformers' own loop; with `synced_gpus`, a finished rank continues until all are finished."""
    return model._sample(input_ids, **prepared)


def num_late_steps(cache: Any, is_returned: bool, device: torch.device) -> int:
    """Return for how many steps plain decoding draws after all rows have ended: 1 on MPS, which checks late."""
    check = getattr(generation_utils, "DeferredStopCheck", None)
    return int(check is not None and check.is_supported(device, cache, is_returned, is_assistant=False))


def prefill(model: Any, input_ids: torch.Tensor, config: Any, kwargs: dict[str, Any]) -> Any:
    """Run the prompt as plain decoding does and return the model's outputs."""
    return model._prefill(input_ids, config, kwargs, is_first_iteration=True)


def is_compiled_for_decode(model: Any, kwargs: dict[str, Any], config: Any) -> bool:
    """Whether `generate` compiles a call's passes after the prompt, as it does for static caches on GPUs."""
    return bool(model._valid_auto_compile_criteria(kwargs, config))


def compile_config() -> CompileConfig:
    """Return a config with which `generate` compiles passes over a static cache on any device, not only on GPUs."""
    config = CompileConfig()
    config._compile_all_devices = True
    return config


_MOST_GRAPHS = 64  # graphs that PyTorch may keep for one function, which all models, batch sizes and widths share
WIDTHS = (1, 2, 4, 8, 16)  # tokens per row of compiled passes over a static cache; narrower ones are padded


def padded(num_tokens: int) -> int:
    """Return the tokens per row of a compiled pass over `num_tokens`, including its padding."""
    return next((width for width in WIDTHS if width >= num_tokens), num_tokens)


def run(forward: Callable[..., T], inputs: dict[str, Any], *, has_own_graph: bool) -> tuple[T, bool]:
    """Run a pass, compiled or not, with these keyword arguments.

    With `has_own_graph`, a compiled forward uses one graph for each shape of a pass, instead of one for all shapes,
    which is slower and cannot be replayed as a CUDA graph. PyTorch's limit of 8 graphs is raised for the process, since
    it would end compiling for plain decoding too.

    Returns the output, and whether a graph was compiled or recorded, so that the pass's time predicts nothing.
    """
    if has_own_graph:
        for value in inputs.values():
            for tensor in value.values() if isinstance(value, dict) else (value,):
                if isinstance(tensor, torch.Tensor):
                    torch._dynamo.mark_static(tensor)
        config = torch._dynamo.config
        limit = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"  # its name in 2.6
        setattr(config, limit, max(getattr(config, limit), _MOST_GRAPHS))
    compilations: list[Any] = []
    handler = torch._dynamo.callback.callback_handler
    note = handler.register_start_callback(lambda *args: compilations.append(args))
    try:
        return forward(**inputs), bool(compilations)
    finally:
        handler.remove_start_callback(note)


_ROUTER = "output_router_logits"


def drop_router_logits(model: Any, inputs: dict[str, Any]) -> None:
    """Let a pass return no router logits: their training loss fails with blocks, and with several rows."""
    if inputs.get(_ROUTER) or getattr(model.config, _ROUTER, False):
        inputs[_ROUTER] = False


def next_kwargs(model: Any, outputs: Any, kwargs: dict[str, Any], num_new: int) -> dict[str, Any]:
    """Return the keyword arguments for the pass after one that appended `num_new` tokens."""
    types = kwargs.get("token_type_ids")
    updated: dict[str, Any] = model._update_model_kwargs_for_generation(
        outputs, kwargs, is_encoder_decoder=bool(model.config.is_encoder_decoder), num_new_tokens=num_new
    )
    if types is not None and num_new:  # transformers would repeat the last `num_new` of them
        updated["token_type_ids"] = torch.cat([types, types[:, -1:].expand(-1, num_new)], dim=-1)
    return updated


_PER_ROW = {"input_ids", "attention_mask", "position_ids"}

_KNOWN = {
    *_PER_ROW, "cache_position", "use_cache", "logits_to_keep", "num_logits_to_keep", "return_dict", "token_type_ids",
    "mm_token_type_ids", "inputs_embeds", "encoder_outputs", "decoder_input_ids", "decoder_attention_mask",
    "decoder_position_ids", "output_attentions", "output_hidden_states", _ROUTER,
}  # fmt: skip

IN_EVERY_PASS = ("image_attention_mask", "image_pixel_values", "audio_input_features")
"""Arguments for images and audio that a model takes with every token, not only with the prompt (Idefics, Phi-4)."""


def optimized_for_decode(model: Any) -> AbstractContextManager[Any]:
    """Enable the kernels that transformers reserves for decoding."""
    context: AbstractContextManager[Any] = model._optimize_model_for_decode()
    return context


def hands_on_positions(model: Any, model_kwargs: dict[str, Any]) -> bool:
    """Whether the forward gets `position_ids`, which Kosmos-2.5 and EXAONE 4.5 drop, and no unknown per-row tensors."""
    positions = model_kwargs["position_ids"]
    prepared = model.prepare_inputs_for_generation(
        torch.zeros_like(positions), next_sequence_length=1, **extend_kwargs(model_kwargs, 0, False)
    )
    others = {name for name, value in prepared.items() if isinstance(value, torch.Tensor)} - _PER_ROW
    return prepared.get("position_ids") is not None and not others


def foreign_arguments(model: Any, model_kwargs: dict[str, Any]) -> set[str]:
    """Return which arguments only other code's classes may know, such as a steering vector."""
    given = {name for name, value in model_kwargs.items() if value is not None and value is not False}
    bases = [kind for kind in type(model).__mro__ if kind.__module__.startswith("transformers.models.")]
    forwards = [vars(kind)["forward"] for kind in bases if "forward" in vars(kind)]
    return given - _KNOWN - {*CACHE_INPUTS} - {name for each in forwards for name in inspect.signature(each).parameters}


def pad_id(config: Any) -> int | None:
    """Return the id that pads finished rows of a prepared call."""
    padding = config._pad_token_tensor if hasattr(config, "_pad_token_tensor") else config.pad_token_id
    return None if padding is None else int(padding)


def eos_ids(config: Any) -> frozenset[int]:
    """Return the ids that end a row, from the generation config of a prepared call or of a model."""
    eos = getattr(config, "_eos_token_tensor", None)
    eos = config.eos_token_id if eos is None else eos
    return frozenset(() if eos is None else torch.as_tensor(eos).flatten().tolist())


def extend_kwargs(model_kwargs: dict[str, Any], num_new: int, is_encoder_decoder: bool) -> dict[str, Any]:
    """Return a copy of `model_kwargs` with masks, positions and token types for `num_new` more tokens, or fewer.

    Each is extended from its own length: the ids are shorter if the prompt was passed as embeddings or is cached.
    """
    extended: dict[str, Any] = dict(model_kwargs)
    prefix = "decoder_" if is_encoder_decoder else ""
    mask, positions = f"{prefix}attention_mask", f"{prefix}position_ids"
    names = mask, positions, "token_type_ids", "mm_token_type_ids"
    known = [name for name in names if extended.get(name) is not None]
    if num_new <= 0:
        return extended | {name: extended[name][..., :num_new] for name in known if num_new}
    if mask in known:
        size = extended[mask].shape[1] + num_new
        extended = candidate_generator._prepare_attention_mask(extended, size, is_encoder_decoder)
    if positions in known:
        size = extended[positions].shape[-1] + num_new
        extended = candidate_generator._prepare_position_ids(extended, size, is_encoder_decoder)
    for name, is_repeated in (("token_type_ids", True), ("mm_token_type_ids", False)):
        if name in known:  # text continues with the last type; image markers do not
            types = extended[name]
            last = types[:, -1:] if is_repeated else types.new_zeros((types.shape[0], 1))
            extended[name] = torch.cat([types, last.expand(-1, num_new)], dim=-1)
    return extended


def limit_positions(kwargs: dict[str, Any], width: int, last: int) -> None:
    """Limit the positions of a pass over `width` tokens, whose padding may exceed the model's last one."""
    positions = kwargs.get("position_ids")
    if positions is not None:
        first = positions[..., positions.shape[-1] - width, None]
        kwargs["position_ids"] = positions.minimum(first.clamp(min=last))
