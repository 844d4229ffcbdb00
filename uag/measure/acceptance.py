"""Acceptance of a draft on texts of its target, with confidence intervals.

*Agreement* is the share of tokens that are the projection's first choice, measured at every token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from uag.measure.replay import Replay
from uag.measure.writing import Text

_NUM_RESAMPLES = 2000
_FEWEST_PROMPTS = 4
"""Minimum number of prompts for an interval: resampling two or three yields one that is far too narrow."""


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval over prompts; its bounds are None if there are too few prompts."""

    value: float
    low: float | None = None
    high: float | None = None

    def __format__(self, form: str) -> str:
        """Return the value and its interval, each formatted with `form`."""
        form = form or ".3f"
        if self.low is None or self.high is None:
            return format(self.value, form)
        return f"{self.value:{form}} ({self.low:{form}} to {self.high:{form}})"


@dataclass(frozen=True)
class Acceptance:
    """Acceptance of a draft on texts of its target.

    Attributes:
        temperature: temperature of the texts; 0 is greedy.
        num_texts: texts measured.
        num_tokens: tokens at which agreement was measured.
        agreement: share of these tokens that were the projection's first choice.
    """

    temperature: float
    num_texts: int
    num_tokens: int
    agreement: Estimate

    @property
    def mode(self) -> str:
        """The label of the temperature in tables."""
        return f"temperature {self.temperature:g}" if self.temperature else "greedy"


def measure_acceptance(replay: Replay, texts: Sequence[Text]) -> Acceptance:
    """Measure acceptance on texts of one temperature."""
    counts = list(replay.count(texts))
    return Acceptance(
        temperature=texts[0].temperature,
        num_texts=len(texts),
        num_tokens=sum(num_tokens for num_tokens, _ in counts),
        agreement=ratio([agreed for _, agreed in counts], [num_tokens for num_tokens, _ in counts]),
    )


def ratio(parts: Sequence[float], wholes: Sequence[float]) -> Estimate:
    """Return the ratio of two sums over prompts, with a percentile interval of a bootstrap over prompts.

    Tokens of one text depend on each other, so whole prompts are resampled, not tokens.

    >>> ratio([1, 2, 3, 4], [2, 4, 6, 8])
    Estimate(value=0.5, low=0.5, high=0.5)
    """
    pairs = np.array([pair for pair in zip(parts, wholes, strict=True) if pair[1] > 0], dtype=float).reshape(-1, 2)
    if not len(pairs):
        return Estimate(0.0)
    value = float(pairs[:, 0].sum() / pairs[:, 1].sum())
    if len(pairs) < _FEWEST_PROMPTS:
        return Estimate(value)
    drawn = pairs[np.random.default_rng(0).integers(len(pairs), size=(_NUM_RESAMPLES, len(pairs)))].sum(axis=1)
    low, high = np.quantile(drawn[:, 0] / drawn[:, 1], (0.025, 0.975)).tolist()
    return Estimate(value, low, high)
