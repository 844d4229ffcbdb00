"""Converts the draft's mass for a target token to a score.

The draft should pick the token that the target will select. In greedy decoding, this is the token with the most mass.
In sampling, the target selects `argmax(probs / noise)` (see `uag.sampling.noise`), so the draft divides its own mass by
the same noise. Temperature and penalties, which the target applies to logits, apply to `log(mass) + logsumexp(draft
logits)`, and truncations (top-k, top-p, min-p) to the masses that the search collected.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from uag.projection.tree import FloatArray, IntArray
from uag.projection.vocabulary import SortedBytes
from uag.proposal import Warpers

LOG_SCORE_FLOOR = 1e-38  # replaces a mass of zero, which has no logarithm; the smallest normal float32
_OPEN_SHARE = 0.5  # share of an open continuation's mass that its best target token is expected to get, without noise
_MOST_POWER, _LN_MOST = 1e30, math.log(1e30)  # largest power of noise; more would overflow float32
_LEAST_NOISE = 1e-37  # replaces noise of zero, which has no negative power

_LN_MEDIAN = -math.log(math.log(2.0))
"""Log of the median of the best `mass / noise`, which is `1 / E` with exponential E for any distribution."""


@dataclass
class Scoring:
    """Scores for one output step of one row.

    Attributes:
        noise: [vocab_size] float32, the noise of this step and row; None for greedy. A mass times the token's power
            `noise ** -temperature` orders tokens as `mass ** (1 / temperature) / noise` does. Powers are computed only
            for tokens that are read: for all of 150,000, they would take a millisecond.
        seen: target ids that the repetition penalty applies to.
        uniform: the number in [0, 1) with which the draft samples, for rejection sampling; None for the best token.
        may_feed: whether draft passes may be requested; if not, the distributions computed so far decide.
    """

    vocab_size: int
    warpers: Warpers = field(default_factory=Warpers)
    noise: FloatArray | None = None
    seen: Collection[int] = ()
    uniform: float | None = None
    may_feed: bool = True

    @property
    def is_noisy(self) -> bool:
        return self.noise is not None

    @property
    def is_linear(self) -> bool:
        """Whether every score is a weighted mass, except for truncations."""
        return not self.warpers.banned and self.warpers.repetition_penalty == 1.0

    def powers(self, target_ids: IntArray) -> FloatArray:
        """Return the powers of the noise of target tokens; ids that the head lacks are treated as its last one."""
        if self.noise is None:
            return np.ones(target_ids.shape, dtype=np.float32)
        noise = np.maximum(self.noise[np.minimum(target_ids, self.vocab_size - 1)], self._least_noise)
        powers: FloatArray = np.exp(np.log(noise) * -self.warpers.temperature)  # faster than ** in single precision
        return powers

    def power(self, target_id: int) -> float:
        """Return the power of the noise of one target token in the head; 1 without noise."""
        return 1.0 if self.noise is None else self._power(self.noise.item(target_id))

    def most(self, target_ids: Sequence[int]) -> float:
        """Return the largest power of the noise of some tokens; 0 without noise or tokens."""
        noise, size = self.noise, self.vocab_size
        values = () if noise is None else [noise.item(i) for i in target_ids if i < size]
        return self._power(min(values)) if values else 0.0

    @cached_property
    def largest_power(self) -> float:
        """The largest power of the noise of all tokens; 1 without noise."""
        return 1.0 if self.noise is None else self._power(self.noise.min().item())

    @cached_property
    def _least_noise(self) -> float:
        return max(_LEAST_NOISE, float(_MOST_POWER ** (-1.0 / self.warpers.temperature)))

    def _power(self, noise: float) -> float:
        power: float = max(noise, self._least_noise) ** -self.warpers.temperature
        return power

    def reach(self, over: bytes, mass: float, texts: SortedBytes, least: float = 0.0) -> float:
        """Return the score that the best target token of an open continuation is expected to reach.

        The tokens of the target's `texts` that are longer than the text `over` are assumed to share the mass evenly: an
        upper bound would spend draft passes on mass that is split over many tokens. A score below `least` need not be
        exact.
        """
        noise = self.noise
        if noise is None:
            return mass * _OPEN_SHARE
        if not over:
            return mass * math.exp(min(_LN_MEDIAN * self.warpers.temperature, _LN_MOST))
        starts, longer = texts.neighbors(over)
        best = self.most(starts)
        if longer:
            low, high = longer
            share = self.largest_power / (high - low)
            if share > best and mass * share > least:  # some texts have 50,000 longer tokens
                least_noise = noise[np.minimum(texts.ids[low:high], self.vocab_size - 1)].min().item()
                share = self._power(least_noise) / (high - low)
            best = max(best, share)
        return mass * best

    def score(self, target_id: int, mass: float, log_normalizer: float) -> float:
        mass = self._kept_mass(target_id, mass, log_normalizer)
        return mass and mass * self.power(target_id)

    def _kept_mass(self, target_id: int, mass: float, log_normalizer: float) -> float:
        if target_id >= self.vocab_size or target_id in self.warpers.banned:
            return 0.0
        if self.warpers.repetition_penalty != 1.0 and target_id in self.seen:
            mass = penalized(mass, log_normalizer, self.warpers.repetition_penalty)
        return mass

    def choose(self, closed: Mapping[int, float], log_normalizer: float) -> int | None:
        """Return the target token with the best score that the truncations keep, or None."""
        masses = {target_id: self._kept_mass(target_id, mass, log_normalizer) for target_id, mass in closed.items()}
        masses = {target_id: mass for target_id, mass in masses.items() if mass > 0.0}
        if masses and self.warpers.truncates and self.is_noisy:  # after penalties and bans, as in the target
            weights = np.array(list(masses.values()))
            # Relative to the largest: at a temperature near 0, powers of the masses themselves would underflow.
            kept = self.warpers.truncate((weights / weights.max()) ** (1.0 / self.warpers.temperature)) > 0.0
            masses = {target_id: masses[target_id] for target_id, keeps in zip(masses, kept, strict=True) if keeps}
        return max(masses, key=lambda i: masses[i] * self.power(i), default=None)


def penalized(mass: float, log_normalizer: float, penalty: float) -> float:
    """Return a mass after applying the repetition penalty to its logit."""
    logit = math.log(max(mass, LOG_SCORE_FLOOR)) + log_normalizer
    logit = logit * penalty if logit < 0 else logit / penalty
    return math.exp(min(logit - log_normalizer, _LN_MOST))
