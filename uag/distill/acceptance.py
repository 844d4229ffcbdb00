"""Acceptance as uag will find it, on held-out prompts, with an interval.

*Agreement* is how often the projection's first choice is the target's own next token, asked at every token. *Tokens per
pass* is what a round of some candidates gives: those accepted, and one of the target's own.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from uag.distill.replay import Replay, Replayed
from uag.distill.texts import Text

_NUM_RESAMPLES = 2000
"""Resamples of the bootstrap: more move an interval's ends less from seed to seed, and take longer."""

_LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A figure with its interval of 95 % over prompts; the ends are None where one prompt allows none."""

    value: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        """Show the figure and its interval."""
        return f"{self.value:.3f}" + ("" if self.low is None else f" ({self.low:.3f} to {self.high:.3f})")


@dataclass(frozen=True)
class Acceptance:
    """How a draft does on texts of its target.

    Attributes:
        temperature: of the texts; 0 is greedy.
        num_candidate_tokens: of a round.
        num_texts: texts looked at.
        num_tokens: tokens of theirs that were asked for.
        agreement: share of these tokens that were the projection's first choice.
        tokens_per_pass: output tokens of a round.
    """

    temperature: float
    num_candidate_tokens: int
    num_texts: int
    num_tokens: int
    agreement: Estimate
    tokens_per_pass: Estimate

    def to_dict(self) -> dict[str, Any]:
        """Return everything ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Acceptance":
        """Read what `to_dict` gave."""
        estimates = {name: Estimate(**values[name]) for name in ("agreement", "tokens_per_pass")}
        return cls(**values | estimates)

    def __str__(self) -> str:
        """Say it in one line."""
        how = f"temperature {self.temperature:g}" if self.temperature else "greedy"
        return (
            f"{how}: first choice is the target's token {self.agreement}, tokens per pass at "
            f"{self.num_candidate_tokens} candidates {self.tokens_per_pass}"
        )


def measure(replay: Replay, texts: Sequence[Text]) -> Acceptance:
    """Measure acceptance on texts of one temperature, in rounds of `replay.num_candidate_tokens`."""
    by_token = list(replace(replay, every_token=True).run(texts))
    by_round = list(replace(replay, every_token=False).run(texts))
    return Acceptance(
        temperature=texts[0].temperature,
        num_candidate_tokens=replay.num_candidate_tokens,
        num_texts=len(texts),
        num_tokens=sum(found.num_rounds for found in by_token),
        agreement=agreement(by_token),
        tokens_per_pass=tokens_per_pass(by_round),
    )


def agreement(replayed: Sequence[Replayed]) -> Estimate:
    """Return the share of tokens that were the first choice; of replays that asked at every token."""
    return ratio([found.num_accepted for found in replayed], [found.num_rounds for found in replayed])


def tokens_per_pass(replayed: Sequence[Replayed]) -> Estimate:
    """Return the output tokens of a round."""
    gained = ratio([found.num_accepted for found in replayed], [found.num_rounds for found in replayed])
    low, high = (None if end is None else 1.0 + end for end in (gained.low, gained.high))
    return Estimate(1.0 + gained.value, low, high)


def ratio(parts: Sequence[float], wholes: Sequence[float]) -> Estimate:
    """Return the ratio of two sums over prompts, with the percentiles of a bootstrap over prompts.

    Tokens of one text depend on each other, so whole prompts are drawn again, not tokens.

    >>> ratio([1, 2, 3], [2, 4, 6])
    Estimate(value=0.5, low=0.5, high=0.5)
    """
    pairs = np.array([pair for pair in zip(parts, wholes, strict=True) if pair[1] > 0], dtype=float).reshape(-1, 2)
    if not len(pairs):
        return Estimate(0.0)
    value = float(pairs[:, 0].sum() / pairs[:, 1].sum())
    if len(pairs) < 2:
        return Estimate(value)
    drawn = pairs[np.random.default_rng(0).integers(len(pairs), size=(_NUM_RESAMPLES, len(pairs)))].sum(axis=1)
    low, high = np.quantile(drawn[:, 0] / drawn[:, 1], ((1 - _LEVEL) / 2, (1 + _LEVEL) / 2)).tolist()
    return Estimate(value, low, high)
