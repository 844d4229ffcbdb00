"""The settings that a user passes to the proposer."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from uag.errors import OptionError
from uag.loading import check_dtype

_STRING = ("a string", str)

_EXPECTED: dict[str, tuple[Any, ...]] = {
    "min_confidence": ("a number from 0 to 1", int | float, 0, 1),
    "max_cached_tokens": ("an integer of at least 1", int, 1, math.inf),
}
"""A description of each setting, its type, and its bounds. All other settings are strings."""


@dataclass(frozen=True)
class Settings:
    """The settings in vLLM's `additional_config={"uag": {...}}`.

    Attributes:
        draft: folder or hub name of the draft model; required.
        draft_tokenizer: folder or hub name of its tokenizer; None for the draft's own.
        tokenizer: folder or hub name of the target's tokenizer; None for the one that vLLM uses.
        dtype: of the draft's weights; None for float32 on a CPU and the checkpoint's own type elsewhere.
        device: of the draft; None for the target's.
        min_confidence: draft for a request while the probability that all its candidates are accepted is at least this;
            0 always drafts `num_speculative_tokens`. None drafts as many as pay off at the engine's measured speed.
        max_cached_tokens: slots of the draft's cache. Increase for more or longer requests; decrease to save memory.
    """

    draft: str
    draft_tokenizer: str | None = None
    tokenizer: str | None = None
    dtype: str | None = None
    device: str | None = None
    min_confidence: float | None = None
    max_cached_tokens: int = 131_072

    @classmethod
    def read(cls, additional_config: Any) -> Self:
        """Read and check vLLM's `additional_config`.

        Raises:
            OptionError: the draft is missing, or a setting is unknown or invalid.
        """
        settings = additional_config.get("uag") if isinstance(additional_config, Mapping) else None
        if not isinstance(settings, Mapping) or not settings.get("draft"):
            raise OptionError(
                f"uag.vllm.Proposer finds no draft: additional_config is {additional_config!r}. Pass "
                'additional_config={"uag": {"draft": "path/or/hub-name"}}, or on the command line '
                '--additional-config \'{"uag": {"draft": "path/or/hub-name"}}\'.'
            )
        defaults = {field.name: field.default for field in fields(cls)}
        unknown = sorted(set(settings) - set(defaults))
        if unknown:
            raise OptionError(
                f"additional_config['uag'] has unknown settings: {', '.join(map(repr, unknown))}. "
                f"Known are {', '.join(defaults)}."
            )
        for name, value in settings.items():
            expected, kind, *bounds = _EXPECTED.get(name, _STRING)
            if value is None is defaults[name]:
                continue
            is_right = isinstance(value, kind) and not isinstance(value, bool)
            if not is_right or (bounds and not bounds[0] <= value <= bounds[1]):
                raise OptionError(f"additional_config['uag'][{name!r}] is {value!r}, it must be {expected}.")
        if settings.get("dtype") is not None:
            check_dtype(settings["dtype"])
        return cls(**settings)
