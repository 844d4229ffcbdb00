"""What passes cost: a fixed part and a part per token, fitted to the latest measurements."""

from collections import deque
from collections.abc import Iterable
from statistics import median_low

_NUM_KEPT = 12
"""Measurements behind each estimate. Increase to average out more noise; decrease to follow the machine's speed sooner."""

_NUM_SURE = 3
"""Measurements that outweigh a first guess. Increase to be safer from cold passes; decrease to learn sooner."""

_MOST_UNMEASURED = 32
"""Rounds with candidates until a plain pass is due again. Increase to spend less on measuring; decrease to notice sooner
that plain decoding became faster."""

_CHUNK = 32
"""Prompt tokens that show how fast the draft reads, and how many times as many they predict. Increase to predict long
prompts better; decrease to spend less on measuring."""


class Line:
    """Seconds as a linear function of a number of tokens.

    The slope is the Theil-Sen estimate, the median over all pairs of points: slow outliers move it little. The fixed part
    is a lower quartile, since other processes and cold caches only ever make a pass slower.
    """

    def __init__(self) -> None:
        self.points: deque[tuple[float, float]] = deque(maxlen=_NUM_KEPT)
        self._fits: dict[tuple[float, float], tuple[float, float]] = {}

    def learn(self, num_tokens: float, seconds: float) -> None:
        """Add a measurement."""
        self.points.append((num_tokens, seconds))
        self._fits.clear()

    def fit(self, start: tuple[float, float]) -> tuple[float, float]:
        """Return (fixed seconds, seconds per token); there must be a measurement.

        Args:
            start: one more point for the slope, known beforehand: measurements may all be of one length.
        """
        if start not in self._fits:
            points = [start, *self.points]
            pairs = [(a, b) for place, a in enumerate(points) for b in points[:place] if a[0] != b[0]]
            slope = max(median_low((a[1] - b[1]) / (a[0] - b[0]) for a, b in pairs), 0.0) if pairs else 0.0
            fixed = lower_quartile(y - slope * x for x, y in self.points)
            if fixed < 0.0:
                fixed, slope = 0.0, lower_quartile(y / x for x, y in self.points)
            self._fits = {start: (fixed, slope)}
        return self._fits[start]


def lower_quartile(values: Iterable[float]) -> float:
    """Return the lower quartile: the minimum of up to four values, the third lowest of twelve."""
    ascending = sorted(values)
    return ascending[(len(ascending) - 1) // 4]


class Costs:
    """Seconds of passes for one number of rows, as (fixed seconds, seconds per candidate).

    A plain pass has an estimate of its own, since most machines run it with other kernels than a pass over candidates.

    Attributes:
        size_ratio: bytes of the draft per byte of the target, which stands in for a draft pass that was not measured.
        plain: measured plain passes.
        block: passes over candidates, by their number.
        draft: drafting, by candidates.
        reading: the draft's passes over prompts, by tokens.
    """

    def __init__(self) -> None:
        self.size_ratio = 0.0
        self.plain: deque[float] = deque(maxlen=_NUM_KEPT)
        self.block, self.draft, self.reading = Line(), Line(), Line()
        self._num_plain = self._num_since_plain = 0

    def learn_target(self, num_candidates: int, seconds: float) -> None:
        """Add a target pass over so many candidates per row."""
        self._num_since_plain += 1
        if num_candidates:
            self.block.learn(num_candidates, seconds)
        else:
            self.plain.append(seconds)
            self._num_plain, self._num_since_plain = self._num_plain + 1, 0

    @property
    def is_plain_due(self) -> bool:
        """Whether a plain pass should be measured again: after 2, 4, 8, ... rounds with candidates."""
        return self._num_since_plain >= min(1 << self._num_plain, _MOST_UNMEASURED)

    def plain_s(self) -> float:
        """Return the seconds of a plain pass, never more than of a pass over candidates; 1 before any was measured."""
        if not self.plain:
            return 1.0
        return min(lower_quartile(self.plain), lower_quartile([y for _, y in self.block.points] or self.plain))

    def block_s(self) -> tuple[float, float]:
        """Return the seconds of a pass over candidates."""
        plain_s = self.plain_s()
        fixed, slope = self.block.fit((0.0, plain_s)) if self.block.points else (plain_s, 0.0)
        return (fixed if len(self.block.points) >= _NUM_SURE else min(fixed, plain_s)), slope

    def draft_s(self) -> tuple[float, float]:
        """Return the seconds of drafting."""
        guess = self.size_ratio * self.plain_s()
        fixed, slope = self.draft.fit((0.0, 0.0)) if self.draft.points else (0.0, guess)
        return (0.0, min(slope, guess)) if guess and len(self.draft.points) < _NUM_SURE else (fixed, slope)

    def round_s(self) -> tuple[float, float]:
        """Return the seconds of drafting and verifying."""
        (block_s, token_s), (start_s, candidate_s) = self.block_s(), self.draft_s()
        return block_s + start_s, token_s + candidate_s

    def reading_s(self, num_tokens: int, target_s: float) -> float:
        """Predict the seconds in which the draft reads a prompt that the target read in `target_s`."""
        if not self.reading.points:
            return self.size_ratio * target_s
        candidate_s = self.draft_s()[1]
        fixed, slope = self.reading.fit((1.0, candidate_s))
        # Reading a token among many never takes longer than drafting one, whatever a short prompt suggests.
        return fixed + num_tokens * (min(slope, candidate_s) if self.draft.points else slope)

    def num_to_measure(self, num_tokens: int) -> int:
        """Return how many tokens of a long prompt to read beforehand, to predict the rest; 0 where that is known."""
        longest = max((size for size, _ in self.reading.points), default=0.0)
        is_known = len(self.reading.points) >= _NUM_SURE and num_tokens <= _CHUNK * longest
        return 0 if is_known or num_tokens <= 4 * _CHUNK else max(num_tokens // _CHUNK, _CHUNK)
