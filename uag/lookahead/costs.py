"""What passes cost, as measured so far: the target's by their length, the draft's by the number of candidates."""

from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

MAX_CANDIDATES = 32
"""Candidates of a row at most: more gain a little on easy text, and choosing a length takes longer."""

_SMOOTHING_UP, _SMOOTHING_DOWN = 0.15, 0.4
"""What a slower and a faster measurement move an estimate: higher follows a change sooner, and each outlier further.
Outliers are slow (another process, a cache miss), so slow measurements move it less."""

_NUM_COMPARED = 8
"""Lengths compared beyond the present one: more see past a jump in the target's cost, and take longer per candidate."""

_LONGEST_UNMEASURED = 32
"""Rounds with candidates until plain decoding is due again: more spend less on it, and notice a change later."""

_SLOPE = 0.02
"""What each token beyond the longest measured pass is taken to add to it: higher tries longer passes more rarely."""

_FADING = 0.9
"""What a measured drafting counts after the next one: higher is steadier, and notices a change later."""

_ORIGIN_WEIGHT = 0.1
"""Measurements that "drafting nothing takes no time" counts as: more give less to the start, more to the candidates."""


Sums = tuple[float, ...]
"""Of 1, x, y, xx and xy over the points of a line, older points counting less."""


def with_point(sums: Sums, fading: float, x: float, y: float) -> Sums:
    """Return the sums with one point more, what was there before counting `fading` of what it counted."""
    return tuple(fading * old + new for old, new in zip(sums, (1.0, x, y, x * x, x * y), strict=True))


@dataclass
class DraftCost:
    """Seconds of drafting: a start, and so much for each candidate.

    A line through what was measured, older measurements counting less; while all were of one length, through the
    origin. The start is what the draft reads of the target's last tokens; the last candidate often needs no pass.
    """

    _sums: Sums = (0.0,) * 5  # x candidates took y seconds
    _start: float = 0.0
    _slope: float = 0.0

    @property
    def is_known(self) -> bool:
        """Whether anything was measured."""
        return self._sums[0] > 0.0

    def __call__(self, num_candidates: float) -> float:
        """Predict the seconds of drafting so many candidates; 0 before anything was measured."""
        return self._start + self._slope * num_candidates

    def learn(self, num_candidates: float, seconds: float) -> None:
        """Add a measurement; a single slow one (another process, a cache miss) must not move the line far."""
        if self.is_known:
            seconds = min(seconds, 1.5 * self(num_candidates))
        self._sums = with_point(self._sums, _FADING, num_candidates, seconds)
        weight, x, y, xx, xy = self._sums
        weight += _ORIGIN_WEIGHT
        self._slope = min(max((weight * xy - x * y) / (weight * xx - x * x), 0.0), xy / xx)
        self._start = max((y - self._slope * x) / weight, 0.0)


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
    _table: list[float] = field(default_factory=list, init=False)
    _counts: dict[int, int] = field(default_factory=dict, init=False)
    _num_since_plain: int = field(default=0, init=False)

    def with_other_target(self) -> Self:
        """Return a copy that knows nothing of the target's passes yet."""
        return replace(self, target_s={}, draft=replace(self.draft))

    def learn_target(self, num_tokens: int, seconds: float) -> None:
        """Add a measured target pass; the first few of a length count alike."""
        count = self._counts[num_tokens] = self._counts.get(num_tokens, 0) + 1
        self.target_s[num_tokens] = smooth(self.target_s.get(num_tokens), seconds, count)
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
            sizes = sorted(self.target_s)
            seconds = np.minimum.accumulate([self.target_s[size] for size in reversed(sizes)])[::-1]
            self._table = np.interp(range(1, sizes[-1] + 1), sizes, seconds).tolist()
        num_beyond = max(num_tokens - len(self._table), 0)
        return self._table[num_tokens - num_beyond - 1] * (1.0 + _SLOPE * num_beyond)

    def rate(self, length: int, expected: float) -> float:
        """Return output tokens per second with `length` candidates, of which `expected` are accepted."""
        return (1.0 + expected) / (self.draft(length) + self.target(length + 1))

    def best_rate(self, acceptance: float, most: int, length: int, reach: float, expected: float) -> float:
        """Return the best rate over lengths from `length + 1` to `most`; further candidates have this `acceptance`.

        With probability `reach` the first `length` are all accepted; `expected` of them are on average.
        """
        best = 0.0
        for size in range(length + 1, min(length + _NUM_COMPARED, most) + 1):
            reach *= acceptance
            expected += reach
            best = max(best, self.rate(size, expected))
        return best


def smooth(old: float | None, new: float, count: int = 1 << 30) -> float:
    """Move an estimate towards its `count`-th measurement: a little where that is slower, and further where faster."""
    if old is None:
        return new
    share = max(_SMOOTHING_UP if new > old else _SMOOTHING_DOWN, 1.0 / count)
    return old + share * (min(new, 2.0 * old) - old)


def size_class(num_rows: int) -> int:
    """Put numbers of rows whose passes cost about the same together: 1, 2, 3 to 4, 5 to 8, ..."""
    return (num_rows - 1).bit_length()
