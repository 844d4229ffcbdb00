"""Every inner name of transformers that uag touches, in one place.

`check()` runs at install time and when an assistant is made, so that a release that renamed something is refused with
its name instead of failing in the middle of a generation.
"""

from __future__ import annotations

import inspect
from typing import Any

import transformers
from transformers.generation import candidate_generator
from transformers.generation import utils as generation_utils

from uag.errors import CompatibilityError

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
