"""What a draft pass takes by its tokens, and how many of other continuations are worth carrying."""

from dataclasses import dataclass

_SAVED = (0.0, 0.12, 0.18, 0.21)
"""Share of draft passes saved where each may carry 0, 1, 2 or 3 tokens of other continuations: measured on three pairs,
greedy and sampled, the sixth that saved least left out. More than three saved a hundredth more."""

MAX_SIDE = len(_SAVED) - 1

_FADING = 0.99
"""What a measured pass counts after the next one: higher is steadier, and notices a change later."""

_MOST_OVER = 1.3
"""A pass is taken to last at most so many times what was expected of it: more let another process's work count."""

_PRIOR_SLOPE = 0.02
_PRIOR_WEIGHT = 20.0
"""A token is taken to add this share of a pass, as if that had been seen in so many passes. More weight is steadier
where passes are all about equally wide or the machine is busy, and learns later that a wide pass is dear (batches)."""

_USUAL_WIDTH = 16
"""Tokens of a pass that cost about what one costs on most machines; more would save passes and widen them."""


def usual_side(num_rows: int) -> int:
    """Return how many tokens of other continuations each of so many rows carries where no time is to decide."""
    return max(0, min(MAX_SIDE, _USUAL_WIDTH // num_rows - 1))


@dataclass
class PassCosts:
    """Seconds of a pass as a line through the measured ones, older ones counting less."""

    _sums: tuple[float, ...] = (0.0,) * 5  # of 1, x, y, xx and xy, where x tokens took y seconds

    def learn(self, num_tokens: int, seconds: float) -> None:
        """Add a pass over so many tokens, all rows together."""
        if self._sums[0]:
            seconds = min(seconds, _MOST_OVER * self(num_tokens))
        point = (1.0, num_tokens, seconds, num_tokens**2, num_tokens * seconds)
        self._sums = tuple(_FADING * old + new for old, new in zip(self._sums, point, strict=True))

    def __call__(self, num_tokens: float) -> float:
        """Predict the seconds of a pass."""
        weight, x, y, xx, xy = self._sums
        mean_x, mean_y = x / weight, y / weight
        weighted = xy - x * mean_y + _PRIOR_WEIGHT * _PRIOR_SLOPE * mean_y
        slope = weighted / (xx - x * mean_x + _PRIOR_WEIGHT)
        return mean_y + max(slope, 0.0) * (num_tokens - mean_x)

    def best_side(self, num_rows: int) -> int:
        """Return how many tokens of other continuations each of so many rows should carry; all before any pass."""
        if not self._sums[0]:
            return MAX_SIDE
        return min(range(MAX_SIDE + 1), key=lambda n: ((1.0 - _SAVED[n]) * self(num_rows * (1 + n)), -n))
