"""What an assistant refuses before any work: options that mean nothing, modes that cannot be assisted."""

from __future__ import annotations

from typing import Any

import torch
from transformers.generation.configuration_utils import GenerationMode

from uag import compat
from uag.errors import OptionError, UnsupportedError

_OPTIONS = (
    "drafter", "num_candidate_tokens", "min_confidence", "prompt_lookup", "max_branches", "heal", "compile_draft",
    "generator", "sampling",
)  # fmt: skip


def refuse_mode(generation_config: Any) -> None:
    """Refuse a prepared call that is neither greedy decoding nor sampling.

    Raises:
        UnsupportedError: beam search and the like.
    """
    mode = generation_config.get_generation_mode()
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        raise UnsupportedError(
            f"Generation mode {mode.value!r} cannot be assisted: only greedy decoding and sampling can. "
            "Drop num_beams (and the like), or call model.generate without custom_generate and assistant."
        )


def refuse_modes(model: Any, config: Any, kwargs: dict[str, Any]) -> None:
    """Refuse what can be told before transformers prepares the call; `refuse_mode` sees the mode itself.

    Raises:
        UnsupportedError: an option asks for another mode.
    """
    for name, plain in (("num_beams", 1), ("prompt_lookup_num_tokens", 0), ("assistant_early_exit", 0)):
        value = compat.option(model, config, kwargs, name)
        if value is not None and value != plain:
            raise UnsupportedError(
                f"{name}={value!r} cannot be assisted: only greedy decoding and sampling can. "
                f"Drop {name}, or call model.generate without an assistant."
            )


def check_options(
    unknown: dict[str, Any],
    num_candidate_tokens: Any,
    min_confidence: Any,
    max_branches: Any,
    flags: dict[str, Any],
    generator: Any,
) -> None:
    """Refuse options of `uag.Assistant` that mean nothing; see there.

    Raises:
        OptionError: an option is unknown, or has the wrong type or value.
    """
    for name in unknown:
        raise OptionError(f"{name!r} is no option of uag.Assistant. Options are {', '.join(_OPTIONS)}.")
    if num_candidate_tokens is not None and not (_is_whole(num_candidate_tokens) and num_candidate_tokens >= 1):
        raise OptionError(f"num_candidate_tokens={num_candidate_tokens!r} must be a whole number of 1 or more, or None")
    if not isinstance(min_confidence, int | float) or not 0.0 <= min_confidence <= 1.0:
        raise OptionError(f"min_confidence={min_confidence!r} must be a number from 0 to 1.")
    if not _is_whole(max_branches) or max_branches < 0:
        raise OptionError(f"max_branches={max_branches!r} must be a whole number of 0 or more.")
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise OptionError(f"{name}={value!r} must be True or False.")
    if generator is not None and not isinstance(generator, torch.Generator):
        raise OptionError(f"generator={generator!r} must be a torch.Generator, or None for the device's default.")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
