"""The settings that a user passes to the proposer."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from uag.errors import OptionError
from uag.loading import check_dtype


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
        known = {field.name: field for field in fields(cls)}
        if unknown := sorted(settings.keys() - known.keys()):
            raise OptionError(
                f"additional_config['uag'] has unknown settings: {', '.join(map(repr, unknown))}. "
                f"Known are {', '.join(known)}."
            )
        for name, value in settings.items():
            expected, is_right = "a string", isinstance(value, str)
            if name == "min_confidence":
                expected, is_right = "a number from 0 to 1", type(value) in (int, float) and 0 <= value <= 1
            elif name == "max_cached_tokens":
                expected, is_right = "an integer of at least 1", type(value) is int and value >= 1
            if not is_right and (value is not None or known[name].default is not None):
                raise OptionError(f"additional_config['uag'][{name!r}] is {value!r}, it must be {expected}.")
        if settings.get("dtype") is not None:
            check_dtype(settings["dtype"])
        return cls(**settings)
