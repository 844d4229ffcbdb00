"""Shortlists of draft tokens to read: the most probable ones, and those that the noise favors."""

import numpy as np

from uag.projection.pair import TargetReader
from uag.projection.scoring import Scoring
from uag.projection.tree import FloatArray, IntArray

_NEGLIGIBLE = 1e-5
"""Values below this share of the largest are not ranked. Decrease to find rarer tokens; increase to rank fewer."""

_FAINT = 1e-9
"""`_NEGLIGIBLE` where noise may lift a value above larger ones."""

_SPARE = 1e-5
"""Relative difference between powers of the same noise in single and double precision."""

_WEIGHED_FIRST = 256
"""Number of most probable tokens that are weighted first, to bound the score that others must reach. Increase for a
tighter bound; decrease to weight fewer."""

_SHORTLIST = 128
"""Number of ids that are scored when options act on single tokens. Increase to find rarer tokens; decrease to save
time."""

_BEST_WEIGHED = 24
"""Number of draft tokens that are read because the noise favors them. Increase to find rarer tokens; decrease to encode
less."""


def largest(values: FloatArray, num: int, negligible: float = _NEGLIGIBLE) -> IntArray:
    """Return the positions of the `num` largest values, unordered; fewer if the rest is negligible."""
    if not values.size:
        return np.zeros(0, dtype=np.int64)
    listed = np.flatnonzero(values >= negligible * values.max())
    if listed.size <= num:
        return listed
    return listed[np.argpartition(values[listed], listed.size - num)[listed.size - num :]]


def likeliest(scoring: Scoring, probs: FloatArray, first_target: TargetReader, num: int) -> IntArray:
    """Return the `num` most probable draft tokens, fewer if the rest is negligible, and those that the noise favors.

    `probs` is [draft_vocab_size] float32; `first_target` has the first target token of each draft token.
    """
    if not scoring.is_noisy:
        return largest(probs, num)
    listed = largest(probs, max(_WEIGHED_FIRST, num))
    if listed.size <= _BEST_WEIGHED:  # too few to bound the others
        listed = largest(probs, max(_WEIGHED_FIRST, num), _FAINT)
    best = best_weighed(scoring, probs, first_target, _BEST_WEIGHED, listed)
    return _joined(best, listed[largest(probs[listed], num)])


def shortlist(scoring: Scoring, probs: FloatArray) -> IntArray:
    """Return the ids to score if the draft shares the target's ids: the most probable, and those the noise favors.

    Options may ban the most probable ids, so even negligible ones are included.
    """
    size = _SHORTLIST + scoring.warpers.top_k
    if probs.size <= size:
        return np.arange(probs.size, dtype=np.int64)
    listed = largest(probs, size, _FAINT)
    if listed.size < size and not scoring.is_linear:
        listed = np.argpartition(probs, -size)[-size:]
    if not scoring.is_noisy:
        return listed
    return _joined(best_weighed(scoring, probs, np.arange(probs.size, dtype=np.int64), _BEST_WEIGHED, listed), listed)


def best_weighed(
    scoring: Scoring, probs: FloatArray, first_target: TargetReader | IntArray, num: int, listed: IntArray
) -> IntArray:
    """Return the `num` draft tokens whose probabilities, times the powers of the noise, are `largest`.

    The noise of a draft token is that of its first target token, which must be encoded. A token that would not be among
    the best even with the largest power of the noise is not encoded.

    `probs` and `first_target` are as in `likeliest`. `listed` has the most probable tokens; if there are more than
    `num`, they bound the score that others must reach.
    """
    if not listed.size:
        return listed
    weighed = probs[listed] * scoring.powers(first_target[listed])
    least = _NEGLIGIBLE * weighed.max()
    if weighed.size > num:
        least = max(least, np.partition(weighed, -num)[-num])
    ids = np.flatnonzero(probs >= least * (1.0 - _SPARE) / scoring.largest_power)
    return ids[largest(probs[ids] * scoring.powers(first_target[ids]), num)]


def _joined(one: IntArray, other: IntArray) -> IntArray:
    return np.array(list({*one.tolist(), *other.tolist()}), dtype=np.int64)
