"""Costs of passes: a fixed cost plus a cost per token, fitted to recent measurements."""

from collections import deque
from collections.abc import Iterable
from itertools import combinations
from statistics import median_low
from typing import NamedTuple

_NUM_KEPT = 12  # measurements per estimate
_KEPT = 15 / 16  # of the weight of a round's number of draft passes, in each later round
_NUM_SURE = 3  # readings of prompts until they are believed where they took longer than guessed
_PLAIN_EVERY = 16  # rounds with drafted candidates until a plain pass is measured again, at a gain of 1
_NUM_PLAIN = 4  # plain passes whose minimum is the estimate, and rounds until the first one is measured, at a gain of 1
_SLOWED = 2.0  # a pass that took this many times as long as a later one is forgotten: something else slowed it
_TOKEN_SHARE = 0.02  # assumed cost of verifying a candidate before it is measured, as a share of a plain pass
SHORTEST_S = 1e-9  # shortest time of a pass, because speeds divide by it and a coarse clock may measure 0


def lower_quartile(values: Iterable[float]) -> float:
    """Return the lower quartile: the minimum of up to four values, the third lowest of twelve."""
    ascending = sorted(values)
    return ascending[(len(ascending) - 1) // 4]


class Line:
    """Seconds as a linear function of a number of tokens.

    The slope is the Theil-Sen estimate, robust to slow outliers, and the fixed cost a lower quartile.
    """

    def __init__(self) -> None:
        self.points: deque[tuple[float, float]] = deque(maxlen=_NUM_KEPT)  # (tokens, seconds)
        self._slopes: list[float] = []  # between all pairs of points; kept because fits are needed more often

    def add(self, num_tokens: float, seconds: float) -> None:
        """Record a measurement, and forget those that it proves to have been slowed down by something else."""
        kept = [(x, y) for x, y in self.points if y <= _SLOWED * seconds * max(x / num_tokens, 1.0)]
        self.points = deque([*kept, (num_tokens, seconds)], maxlen=_NUM_KEPT)
        pairs = combinations(self.points, 2)
        self._slopes = [(a[1] - b[1]) / (a[0] - b[0]) for a, b in pairs if a[0] != b[0]]

    def fit(self, start: tuple[float, float], guess: float = 0.0) -> tuple[float, float]:
        """Return (fixed seconds, seconds per token), also from a point and a slope that are known in advance."""
        if not self.points:
            return start[1], guess
        slopes = self._slopes + [(y - start[1]) / (x - start[0]) for x, y in self.points if x != start[0]]
        slope = max(median_low(slopes), 0.0) if slopes else 0.0
        fixed = lower_quartile(y - slope * x for x, y in self.points)
        return (fixed, slope) if fixed > 0.0 else (0.0, lower_quartile(y / x for x, y in self.points))


class Prices(NamedTuple):
    """Seconds of a plain pass, and the fixed and per-candidate seconds of verifying and drafting."""

    plain_s: float
    verify_s: float
    verify_candidate_s: float
    draft_s: float
    draft_candidate_s: float

    def round_s(self, num_candidates: float) -> float:
        return self.verify_s + self.draft_s + num_candidates * (self.verify_candidate_s + self.draft_candidate_s)


class Costs:
    """Measured passes for one number of rows.

    Attributes:
        is_flat: whether a target pass costs the same for any number of candidates.
        size_ratio: bytes of the draft per byte of the target; predicts a draft pass before one is measured.
        plain: seconds of plain passes; most machines run them with different kernels than passes over candidates.
        num_since_plain: rounds that drafted since the last plain pass; rounds with free candidates alone do not count,
            since they cannot be avoided by not drafting.
    """

    def __init__(self, *, is_flat: bool = False) -> None:
        self.is_flat, self.size_ratio, self.least_plain_s = is_flat, 0.0, 1.0
        self.plain: deque[float] = deque(maxlen=_NUM_PLAIN)
        self.block, self.draft, self.reading = Line(), Line(), Line()
        self.num_since_plain = 0
        self._num_passes = self._num_drafted = 0.0  # draft passes and candidates; those of older rounds count less

    def learn_draft(self, num_candidates: float, num_passes: int | None, seconds: float) -> None:
        """Record a round's draft passes for `num_candidates` per row.

        Their number varies, since a candidate may take several draft tokens. So passes are timed, not candidates.
        """
        passes = num_candidates if num_passes is None else num_passes
        if passes:  # a candidate may come from the last pass of an earlier round
            self.draft.add(passes, seconds)
        self._num_passes = _KEPT * self._num_passes + passes
        self._num_drafted = _KEPT * self._num_drafted + num_candidates

    def learn_target(self, num_candidates: int, seconds: float) -> None:
        """Record a target pass over `num_candidates` candidates per row."""
        seconds = max(seconds, SHORTEST_S)
        if num_candidates and not self.is_flat:
            self.block.add(num_candidates, seconds)
        else:
            self.plain.append(seconds)
            self.num_since_plain = 0

    def is_plain_due(self, gain: float) -> bool:
        """Return whether a plain pass should be measured: rarely at a high gain, where it decides less."""
        return self.num_since_plain >= (_PLAIN_EVERY if self.plain else _NUM_PLAIN) * gain**2

    @property
    def plain_s(self) -> float:
        """Seconds of a plain pass; before any pass is measured, those of the target's reading of a prompt token."""
        # A plain pass is never slower than one with candidates.
        blocks = [lower_quartile(y for _, y in self.block.points)] if self.block.points else []
        return min([*self.plain, *blocks], default=self.least_plain_s)

    def prices(self) -> Prices:
        guess = self.guess(self.plain_s)
        verify = self.block.fit((0.0, guess.verify_s), guess.verify_candidate_s)
        draft_s, pass_s = self.draft.fit((0.0, guess.draft_s), guess.draft_candidate_s)
        passes = self._num_passes / self._num_drafted if self._num_drafted else 1.0
        return Prices(guess.plain_s, *verify, draft_s, passes * pass_s)

    def guess(self, plain_s: float) -> Prices:
        """Return the costs that are assumed before any pass with candidates is measured."""
        return Prices(plain_s, plain_s, 0.0 if self.is_flat else _TOKEN_SHARE * plain_s, 0.0, self.size_ratio * plain_s)

    def reading_s(self, num_tokens: int, target_s: float, candidate_s: float) -> float:
        """Predict the seconds in which the draft reads a prompt, which the target read in `target_s` seconds."""
        guess_s = min(self.size_ratio * target_s, num_tokens * candidate_s)
        if not self.reading.points:
            return guess_s
        token_s = lower_quartile(y / x for x, y in self.reading.points)
        # Reading one of many tokens never takes longer than drafting one, even if a short prompt suggests it.
        seconds = num_tokens * (min(token_s, candidate_s) if self.draft.points else token_s)
        is_guess_better = 0.0 < guess_s < seconds and len(self.reading.points) < _NUM_SURE
        return guess_s if is_guess_better else seconds
