"""What the user may say to the proposer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from uag.errors import OptionError
from uag.loading import check_dtype

_KEY = "uag"


@dataclass(frozen=True)
class Settings:
    """What `additional_config={"uag": {...}}` may say.

    Attributes:
        draft: folder or hub name of the draft model; must be given.
        draft_tokenizer: folder or hub name of its tokenizer; None for the draft's own.
        tokenizer: folder or hub name of the target's tokenizer; None for the one that vLLM uses.
        dtype: of the draft's weights; None for float32 on a CPU and the checkpoint's own type elsewhere.
        device: of the draft; None for the target's.
        min_confidence: a request is drafted further while the probability that all its candidates are accepted is at
            least this; 0 always drafts `num_speculative_tokens`. None drafts as many as make most output tokens per
            second, going by the time of the engine's steps, and none where that is fastest.
        max_cached_tokens: slots of the draft's cache.
        max_branches: draft passes per candidate that may leave the most probable path.
        heal: let the draft step back into committed text where its tokens do not end with the target's.
        log_interval_s: seconds between two lines of figures in the log; 0 for none.
    """

    draft: str
    draft_tokenizer: str | None = None
    tokenizer: str | None = None
    dtype: str | None = None
    device: str | None = None
    min_confidence: float | None = None
    max_cached_tokens: int = 131_072
    max_branches: int = 1
    heal: bool = True
    log_interval_s: float = 30.0

    @classmethod
    def read(cls, additional_config: Any) -> Settings:
        """Read and check vLLM's `additional_config`.

        Raises:
            OptionError: no settings, an unknown one, or one of the wrong type or value.
        """
        given = additional_config.get(_KEY) if isinstance(additional_config, Mapping) else None
        if not isinstance(given, Mapping) or not given.get("draft"):
            raise OptionError(
                f"uag.vllm.Proposer finds no draft: additional_config is {additional_config!r}. Pass "
                'additional_config={"uag": {"draft": "path/or/hub-name"}}, or on the command line '
                '--additional-config \'{"uag": {"draft": "path/or/hub-name"}}\'.'
            )
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise OptionError(
                f"additional_config['uag'] has unknown settings: {', '.join(map(repr, unknown))}. "
                f"Known are {', '.join(known)}."
            )
        settings = cls(**given)
        settings._check()
        return settings

    def _check(self) -> None:
        for name in ("draft", "draft_tokenizer", "tokenizer", "dtype", "device"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise OptionError(f"additional_config['uag'][{name!r}] is {value!r}, it must be a string.")
        if self.dtype is not None:
            check_dtype(self.dtype)
        if self.min_confidence is not None:
            self._check_number("min_confidence", (int, float), 0, 1)
        self._check_number("max_cached_tokens", (int,), 1, None)
        self._check_number("max_branches", (int,), 0, None)
        self._check_number("log_interval_s", (int, float), 0, None)
        if not isinstance(self.heal, bool):
            raise OptionError(f"additional_config['uag']['heal'] is {self.heal!r}, it must be true or false.")

    def _check_number(self, name: str, types: tuple[type, ...], low: int, high: int | None) -> None:
        value = getattr(self, name)
        is_number = isinstance(value, types) and not isinstance(value, bool)
        if not is_number or not low <= value <= (math.inf if high is None else high):
            kind = "an integer" if types == (int,) else "a number"
            bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
            raise OptionError(f"additional_config['uag'][{name!r}] is {value!r}, it must be {kind} {bounds}.")
