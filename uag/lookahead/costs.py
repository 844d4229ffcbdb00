"""What passes cost: a fixed part and a part per token, fitted to the latest measurements."""

from collections import deque
from collections.abc import Sequence
from statistics import median_low

_NUM_KEPT = 12
"""Measurements behind each estimate. Increase to average out more noise; decrease to follow changes of the machine's
speed sooner, and to fit faster (a fit compares all pairs)."""

_NUM_SURE = 3
"""Measurements that outweigh a first guess. Increase to be safer from cold passes; decrease to learn sooner."""

_MOST_UNMEASURED = 32
"""Rounds with candidates until a plain pass is due again. Increase to spend less on measuring; decrease to notice sooner
that plain decoding became faster."""

_CHUNK = 32
"""Prompt tokens read to measure the draft's speed of reading, and how many times as many that predicts. Increase to
measure longer prompts better; decrease to spend less on it."""


class Line:
    """Seconds as a linear function of a number of tokens.

    The slope is the Theil-Sen estimate, the median over all pairs of points: slow outliers move it little. The fixed part
    is a lower quartile, since other processes and cold caches only ever make a pass slower.
    """

    def __init__(self) -> None:
        self.points: deque[tuple[float, float]] = deque(maxlen=_NUM_KEPT)
        self._start = self._fit = (0.0, 0.0)
        self._is_fitted = False

    def learn(self, num_tokens: float, seconds: float) -> None:
        """Add a measurement."""
        self.points.append((num_tokens, seconds))
        self._is_fitted = False

    def fit(self, start: tuple[float, float]) -> tuple[float, float]:
        """Return (fixed seconds, seconds per token); there must be a measurement.

        Args:
            start: one more point for the slope, known beforehand: measurements may all be of one length.
        """
        if not self._is_fitted or start != self._start:
            self._start, self._is_fitted = start, True
            points = [start, *self.points]
            pairs = [(one, other) for place, one in enumerate(points) for other in points[:place] if one[0] != other[0]]
            slopes = [(one[1] - other[1]) / (one[0] - other[0]) for one, other in pairs]
            slope = max(median_low(slopes), 0.0) if slopes else 0.0
            fixed = lower_quartile([y - slope * x for x, y in self.points])
            if fixed < 0.0:
                fixed, slope = 0.0, lower_quartile([y / x for x, y in self.points])
            self._fit = fixed, slope
        return self._fit


def lower_quartile(values: Sequence[float]) -> float:
    """Return the lower quartile: the minimum of up to four values, the third lowest of twelve."""
    return sorted(values)[(len(values) - 1) // 4]


class Costs:
    """Seconds of target passes, of drafting and of reading the prompt with the draft, for one number of rows.

    A plain pass has an estimate of its own, since most machines run it with other kernels than a pass over candidates.
    """

    def __init__(self) -> None:
        self.size_ratio = 0.0  # bytes of the draft per byte of the target: a draft pass before any was measured
        self.plain: deque[float] = deque(maxlen=_NUM_KEPT)
        self.block, self.draft, self.reading = Line(), Line(), Line()  # by candidates, candidates and prompt tokens
        self._num_plain = self._num_since_plain = 0

    def learn_target(self, num_candidates: int, seconds: float) -> None:
        """Add a target pass over so many candidates per row."""
        if num_candidates:
            self.block.learn(num_candidates, seconds)
            self._num_since_plain += 1
        else:
            self.plain.append(seconds)
            self._num_plain, self._num_since_plain = self._num_plain + 1, 0

    @property
    def is_plain_due(self) -> bool:
        """Whether a plain pass should be measured again: after 2, 4, 8, ... rounds with candidates."""
        return self._num_since_plain >= min(1 << self._num_plain, _MOST_UNMEASURED)

    def plain_s(self) -> float:
        """Return the seconds of a plain pass, never more than of a pass over candidates; 1 before any was measured."""
        passes = [self.plain, [seconds for _, seconds in self.block.points]]
        return min(lower_quartile(seconds) for seconds in passes if seconds) if self.plain else 1.0

    def block_s(self) -> tuple[float, float]:
        """Return (fixed seconds, seconds per candidate) of a pass over candidates."""
        plain_s = self.plain_s()
        fixed, slope = self.block.fit((0.0, plain_s)) if self.block.points else (plain_s, 0.0)
        return (fixed if len(self.block.points) >= _NUM_SURE else min(fixed, plain_s)), slope

    def draft_s(self) -> tuple[float, float]:
        """Return (fixed seconds, seconds per candidate) of drafting."""
        guess = self.size_ratio * self.plain_s()
        fixed, slope = self.draft.fit((0.0, 0.0)) if self.draft.points else (0.0, guess)
        return (0.0, min(slope, guess)) if guess and len(self.draft.points) < _NUM_SURE else (fixed, slope)

    def round_s(self) -> tuple[float, float]:
        """Return (fixed seconds, seconds per candidate) of drafting and verifying."""
        (block_s, token_s), (start_s, candidate_s) = self.block_s(), self.draft_s()
        return block_s + start_s, token_s + candidate_s

    def reading_s(self, num_tokens: int) -> float:
        """Predict the seconds that the draft takes to read a prompt; 0 before any was read."""
        if not self.reading.points:
            return 0.0
        candidate_s = self.draft_s()[1]
        fixed, slope = self.reading.fit((1.0, candidate_s))
        # Reading a token among many never takes longer than drafting one, whatever a short prompt suggests.
        return fixed + num_tokens * (min(slope, candidate_s) if self.draft.points else slope)

    def num_to_measure(self, num_tokens: int) -> int:
        """Return how many tokens of a prompt to read beforehand, to predict what reading all of it takes; 0 for none."""
        longest = max((size for size, _ in self.reading.points), default=0.0)
        is_known = len(self.reading.points) >= _NUM_SURE and num_tokens <= _CHUNK * longest
        return 0 if is_known or num_tokens <= 4 * _CHUNK else max(num_tokens // _CHUNK, _CHUNK)


def size_class(num_rows: int) -> int:
    """Return a class of row counts whose passes cost about the same: 1, 2, 3 to 4, 5 to 8, ..."""
    return (num_rows - 1).bit_length()
