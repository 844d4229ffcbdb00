"""Checks of an assistant's options: wrong types and values are refused before anything runs."""

from typing import Any

import torch

from uag.errors import OptionError

_SAMPLING = ("shared-noise", "rejection")


def check_numbers(num_candidate_tokens: Any, min_confidence: Any, max_branches: Any) -> None:
    """Refuse numbers that mean nothing; see `uag.Assistant`.

    Raises:
        OptionError: a wrong type or value.
    """
    if num_candidate_tokens is not None and not (_is_whole(num_candidate_tokens) and num_candidate_tokens >= 1):
        raise OptionError(f"num_candidate_tokens={num_candidate_tokens!r} must be a whole number of 1 or more, or None")
    if not isinstance(min_confidence, int | float) or not 0.0 <= min_confidence <= 1.0:
        raise OptionError(f"min_confidence={min_confidence!r} must be a number from 0 to 1.")
    if not _is_whole(max_branches) or max_branches < 0:
        raise OptionError(f"max_branches={max_branches!r} must be a whole number of 0 or more.")


def check_length(num_assistant_tokens: Any) -> None:
    """Refuse a number of candidates of one call that is none; 0 drafts nothing.

    Raises:
        OptionError: a wrong type or value.
    """
    if num_assistant_tokens is not None and not (_is_whole(num_assistant_tokens) and num_assistant_tokens >= 0):
        raise OptionError(f"num_assistant_tokens={num_assistant_tokens!r} must be a whole number of 0 or more.")


def check_switches(**switches: Any) -> None:
    """Refuse anything but True and False.

    Raises:
        OptionError: the first option that is neither.
    """
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise OptionError(f"{name}={value!r} must be True or False.")


def check_sampling(generator: Any, sampling: Any) -> None:
    """Refuse a generator, or a way to sample, that there is not.

    Raises:
        OptionError: a wrong type or value.
    """
    if generator is not None and not isinstance(generator, torch.Generator):
        raise OptionError(f"generator={generator!r} must be a torch.Generator, or None for the device's default.")
    if sampling not in _SAMPLING:
        raise OptionError(f"sampling={sampling!r} must be one of {', '.join(map(repr, _SAMPLING))}.")


def check_source(draft: Any, drafter: Any, compile_draft: bool) -> None:
    """Refuse two sources of candidates, and an option for a draft model that is not there.

    Raises:
        OptionError: as said.
    """
    if draft is not None and drafter is not None:
        raise OptionError("Both a draft and a drafter were given. Give one: a drafter replaces the draft model.")
    if compile_draft and draft is None:
        raise OptionError("compile_draft=True was given without a draft model. Give one, or leave it out.")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
