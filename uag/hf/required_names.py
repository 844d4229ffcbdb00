"""The private names of transformers and PyTorch that every call needs, in one place.

Those that only trials and compiled passes need are in `passes`, `foreign_code` and `trials`.

`check()` runs in `uag.install()` and when an assistant is created. It raises if this release lacks a name, instead of
failing in the middle of a generation, and warns once if the release is newer than the tested ones.
"""

import warnings
from functools import cache
from typing import Any

import torch
import transformers
from transformers.generation import candidate_generator
from transformers.generation import utils as generation_utils

from uag.errors import CompatibilityError

OLDEST, NEWEST = "5.16.1", "5.24"
"""The tested releases."""

VERSION = transformers.__version__


def release(version: str = VERSION) -> tuple[int, ...]:
    """Return a version's major and minor numbers."""
    return tuple(int(part) for part in version.split(".")[:2])


NAMES: dict[Any, tuple[str, ...]] = {
    transformers.GenerationMixin: (
        *("generate", "prepare_inputs_for_generation", "_prefill", "_sample", "_update_model_kwargs_for_generation"),
        "_assisted_decoding",
        *("_get_candidate_generator", "_extract_generation_mode_kwargs", "_validate_generation_mode"),
        *("_optimize_model_for_decode", "_supports_default_dynamic_cache", "_valid_auto_compile_criteria"),
    ),
    transformers.Cache: ("crop", "get_seq_length"),
    transformers.PreTrainedConfig: ("_attn_implementation", "_experts_implementation"),
    transformers.PreTrainedModel: ("_can_compile_fullgraph", "_is_stateful", "get_compiled_call"),
    generation_utils: ("ALL_CACHE_NAMES", "GenerationMode"),
    candidate_generator: ("CandidateGenerator", "_prepare_attention_mask", "_prepare_position_ids"),
    torch.mps: ("_get_default_mps_generator",),
    torch.ops.aten.dropout.default: ("_schema",),
    torch: ("_foreach_add_", "_foreach_sub_", "_foreach_zero_"),
}
"""The required names of each class or module."""


def check() -> None:
    """Raise a `CompatibilityError` if this release lacks a name; warn once if it is newer than the tested ones."""
    required = [(owner, name) for owner, names in NAMES.items() for name in names]
    missing = [f"{owner.__name__}.{name}" for owner, name in required if not hasattr(owner, name)]
    if missing:
        raise CompatibilityError(
            f"transformers {VERSION} with PyTorch {torch.__version__} lacks {', '.join(missing)}, which uag needs. "
            f"uag supports {OLDEST} to {NEWEST}: pip install 'transformers>={OLDEST},<5.25'."
        )
    if release(VERSION) > release(NEWEST):
        _warn_once(VERSION)


@cache
def _warn_once(version: str) -> None:
    warnings.warn(
        f"uag: transformers {version} is newer than the releases that uag was tested with ({OLDEST} to {NEWEST}). "
        "It has every name that uag needs. Each target runs a trial before it is assisted.",
        stacklevel=4,
    )
