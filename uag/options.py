"""Checks of an assistant's arguments: wrong types and values, and contradictions."""

from collections.abc import Callable
from typing import Any

import torch

from uag.errors import OptionError, PairError

_SAMPLING = ("shared-noise", "rejection")


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "num_candidate_tokens": (lambda v: v is None or _is_whole(v, 1), "a whole number of 1 or more, or None"),
    "num_assistant_tokens": (lambda v: v is None or _is_whole(v, 0), "a whole number of 0 or more, or None"),
    "min_confidence": (lambda v: isinstance(v, int | float) and 0.0 <= v <= 1.0, "a number from 0 to 1"),
    "generator": (
        lambda v: v is None or isinstance(v, torch.Generator),
        "a torch.Generator, or None for the device's default",
    ),
    "sampling": (lambda v: v in _SAMPLING, f"one of {', '.join(map(repr, _SAMPLING))}"),
}
"""For each option that is not a switch: a check of its value, and a description of valid values."""


def check_options(**options: Any) -> None:
    """Raise for the first invalid option, or if two contradict each other; those without a rule are switches.

    Raises:
        OptionError: a wrong type or value, or rejection sampling with `draft_independent`.
    """
    for name, value in options.items():
        is_valid, expected = _RULES.get(name, (lambda v: isinstance(v, bool), "True or False"))
        if not is_valid(value):
            raise OptionError(f"{name}={value!r} must be {expected}.")
    if options.get("draft_independent") and options.get("sampling") == "rejection":
        raise OptionError(
            "draft_independent=True promises the same output for every draft, and sampling='rejection' returns another "
            "sample for each. Use the default sampling='shared-noise'."
        )


def check_draft_options(draft: Any, drafter: Any, compile_draft: bool) -> None:
    """Raise an `OptionError` if a draft model, a custom drafter and compilation contradict each other."""
    if draft is not None and drafter is not None:
        raise OptionError("Both a draft and a drafter were passed. Pass only one: a drafter replaces the draft.")
    if compile_draft and draft is None:
        raise OptionError("compile_draft=True requires a draft model. Pass a draft, or remove the option.")


def check_sampling(sampling: str, strategy: str) -> None:
    """Raise a `PairError` for rejection sampling with a drafter that cannot provide the probabilities."""
    if sampling == "rejection" and strategy == "cross-tokenizer":
        raise PairError(
            "sampling='rejection' needs the draft's exact probability of every target token, which a draft with "
            "another tokenizer cannot provide. Use the default sampling='shared-noise', which is exact for any draft."
        )
