"""What passes cost, as measured so far: the target's by their length, the draft's by the number of candidates."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

MAX_CANDIDATES = 32

_SMOOTHING, _SMOOTHING_DOWN = 0.15, 0.4

_LONGEST_UNMEASURED = 32

_SLOPE = 0.02
"""What each token beyond the longest measured pass is taken to add to it."""

_FADING = 0.9

_ORIGIN_WEIGHT = 0.1
"""Drafting nothing takes no time: counts as this many measurements."""


@dataclass
class DraftCost:
    """Seconds of drafting: a start, and so much for each candidate.

    A line through what was measured, older measurements counting less; while all were of one length, through the
    origin. The start is what the draft reads of the target's last tokens; the last candidate often needs no pass.
    """

    _weight: float = 0.0
    _x: float = 0.0
    _y: float = 0.0
    _xx: float = 0.0
    _xy: float = 0.0
    _start: float = 0.0
    _slope: float = 0.0

    @property
    def is_known(self) -> bool:
        """Whether anything was measured."""
        return self._weight > 0.0

    def __call__(self, num_candidates: float) -> float:
        """Predict the seconds of drafting so many candidates; 0 before anything was measured."""
        return self._start + self._slope * num_candidates

    def learn(self, num_candidates: float, seconds: float) -> None:
        """Add a measurement; a single slow one (another process, a cache miss) must not move the line far."""
        if self.is_known:
            seconds = min(seconds, 1.5 * self(num_candidates))
        x, y = num_candidates, seconds
        self._weight = _FADING * self._weight + 1.0
        self._x, self._y = _FADING * self._x + x, _FADING * self._y + y
        self._xx, self._xy = _FADING * self._xx + x * x, _FADING * self._xy + x * y
        weight = self._weight + _ORIGIN_WEIGHT
        slope = (weight * self._xy - self._x * self._y) / (weight * self._xx - self._x * self._x)
        slope = min(max(slope, 0.0), self._xy / self._xx)
        self._slope, self._start = slope, max((self._y - slope * self._x) / weight, 0.0)


@dataclass
class Costs:
    """Seconds per pass, smoothed.

    Attributes:
        target_s: target passes by tokens per row; changed by `learn_target` only.
        draft: drafting some candidates, projection included.
        draft_token_s: reading one prompt token with the draft; None before it was measured.
        target_token_s: reading one prompt token with the target.
    """

    target_s: dict[int, float] = field(default_factory=dict)
    draft: DraftCost = field(default_factory=DraftCost)
    draft_token_s: float | None = None
    target_token_s: float | None = None

    def __post_init__(self) -> None:
        self._table: list[float] = []
        self._counts: dict[int, int] = {}
        self._num_since_plain = 0

    def learn_target(self, num_tokens: int, seconds: float) -> None:
        """Add a measured target pass; the first few of a length count alike."""
        count = self._counts.get(num_tokens, 0) + 1
        self.target_s[num_tokens] = smooth(self.target_s.get(num_tokens), seconds, count)
        self._counts[num_tokens] = count
        self._num_since_plain = 0 if num_tokens == 1 else self._num_since_plain + 1
        self._table.clear()

    def is_plain_due(self) -> bool:
        """Whether plain decoding should be measured again: after 2, 4, 8, ... other passes."""
        return self._num_since_plain >= min(1 << self._counts.get(1, 0), _LONGEST_UNMEASURED)

    def target(self, num_tokens: int) -> float:
        """Predict a target pass: between measured lengths by a straight line, beyond them by a gentle slope.

        A pass over more tokens is never cheaper, so one slow measurement of a short pass is held down by the rest.
        """
        if not self.target_s:
            return 1.0
        if not self._table:
            self._table = self._predict_all()
        longest = len(self._table)
        if num_tokens <= longest:
            return self._table[num_tokens - 1]
        return self._table[-1] * (1.0 + _SLOPE * (num_tokens - longest))

    def _predict_all(self) -> list[float]:
        """Return the predictions for 1, 2, ... tokens, as far as can be drafted, and as far as was measured."""
        sizes = sorted(self.target_s)
        seconds = np.minimum.accumulate([self.target_s[size] for size in reversed(sizes)])[::-1]
        lengths = np.arange(1, max(MAX_CANDIDATES + 1, sizes[-1]) + 1)
        beyond = 1.0 + _SLOPE * np.maximum(lengths - sizes[-1], 0)
        table: list[float] = (np.interp(lengths, sizes, seconds) * beyond).tolist()
        return table


def smooth(old: float | None, new: float, count: int = 1 << 30) -> float:
    """Move an estimate towards its `count`-th measurement.

    A single slow pass (another process, a cache miss) moves it little; that it was too high, a fast one shows sooner.
    """
    if old is None:
        return new
    share = max(_SMOOTHING if new > old else _SMOOTHING_DOWN, 1.0 / count)
    return old + share * (min(new, 2.0 * old) - old)


def size_class(num_rows: int) -> int:
    """Put numbers of rows whose passes cost about the same together: 1, 2, 3 to 4, 5 to 8, ..."""
    return (num_rows - 1).bit_length()
