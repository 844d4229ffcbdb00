"""Shortlists of draft tokens to read: the most probable ones, and those that the noise favors."""

import numpy as np

from uag.projection.pair import TargetReader
from uag.projection.scoring import Scoring
from uag.projection.tree import FloatArray, IntArray

_NEGLIGIBLE = 1e-5  # values below this share of the largest are not ranked
_FAINT = 1e-9  # `_NEGLIGIBLE` where options may ban larger values
_NUM_WEIGHED = 1024  # most probable draft tokens among which noise selects
_SHORTLIST = 128  # ids that are scored when options act on single tokens
_BEST_WEIGHED = 24  # draft tokens that are read because the noise favors them


def largest(values: FloatArray, num: int, negligible: float = _NEGLIGIBLE) -> IntArray:
    """Return the positions of the `num` largest values, unordered; fewer if the rest is negligible."""
    if not values.size:
        return np.zeros(0, dtype=np.int64)
    listed = np.flatnonzero(values >= negligible * values.max())
    if listed.size <= num:
        return listed
    return listed[np.argpartition(values[listed], listed.size - num)[listed.size - num :]]


def likeliest(scoring: Scoring, probs: FloatArray, first_target: TargetReader, num: int) -> IntArray:
    """Return the `num` most probable draft tokens, fewer if the rest is negligible, and those that the noise favors."""
    listed = largest(probs, num)
    return _joined(listed, _favored(scoring, probs, first_target)) if scoring.is_noisy else listed


def shortlist(scoring: Scoring, probs: FloatArray) -> IntArray:
    """Return the ids to score if ids are shared, even negligible ones, since options may ban the others."""
    size = _SHORTLIST + scoring.warpers.top_k
    if probs.size <= size:
        return np.arange(probs.size, dtype=np.int64)
    listed = largest(probs, size, _FAINT)
    if listed.size < size and not scoring.is_linear:
        listed = np.argpartition(probs, -size)[-size:]
    return _joined(listed, _favored(scoring, probs, np.arange(probs.size))) if scoring.is_noisy else listed


def _favored(scoring: Scoring, probs: FloatArray, first_target: TargetReader | IntArray) -> IntArray:
    """Return the likely draft tokens whose probabilities, times their target tokens' powers of noise, are largest."""
    listed = largest(probs, _NUM_WEIGHED)
    return listed[largest(probs[listed] * scoring.powers(first_target[listed]), _BEST_WEIGHED)]


def _joined(one: IntArray, other: IntArray) -> IntArray:
    return np.array(list({*one.tolist(), *other.tolist()}), dtype=np.int64)
