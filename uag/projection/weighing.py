"""The draft tokens worth looking at, without asking about all of them."""

import numpy as np

from uag.projection.first_tokens import FirstTokens
from uag.projection.scoring import Scoring
from uag.projection.tree import FloatArray, IntArray

_NEGLIGIBLE = 1e-5
"""Share of the largest value below which a value is not worth ranking."""

_FAINT = 1e-9
"""The same where noise may lift a value above larger ones."""

_SPARE = 1e-5
"""Powers of one noise differ by this in single and in double precision."""

_WEIGHED_FIRST = 256
"""The most probable tokens, weighed to tell what the others must reach: more tell it better and are more to weigh."""

_SHORTLIST = 128
"""Ids scored one by one where options act on single tokens; more finds rarer tokens and takes longer."""

_BEST_WEIGHED = 24
"""Draft tokens looked at because noise favours them."""


def largest(values: FloatArray, num: int, negligible: float = _NEGLIGIBLE) -> IntArray:
    """Return the positions of the `num` largest values, in no order; fewer where the rest is negligible."""
    if not values.size:
        return np.zeros(0, dtype=np.int64)
    found = np.flatnonzero(values >= negligible * values.max())
    if found.size <= num:
        return found
    return found[np.argpartition(values[found], found.size - num)[found.size - num :]]


def likeliest(scoring: Scoring, probs: FloatArray, first_target: FirstTokens, num: int) -> IntArray:
    """Return the `num` most probable draft tokens, fewer where the rest is negligible, and those that noise favours.

    Args:
        scoring: how probabilities are weighed.
        probs: [draft_vocab_size] float32.
        first_target: the first target token of each draft token.
        num: how many of the most probable.
    """
    if not scoring.is_noisy:
        return largest(probs, num)
    listed = largest(probs, max(_WEIGHED_FIRST, num))
    if listed.size <= _BEST_WEIGHED:  # too few to tell what others must reach
        listed = largest(probs, max(_WEIGHED_FIRST, num), _FAINT)
    best = best_weighed(scoring, probs, first_target, _BEST_WEIGHED, listed)
    return _joined(best, listed[largest(probs[listed], num)])


def shortlist(scoring: Scoring, probs: FloatArray) -> IntArray:
    """Return the ids worth scoring where the draft has the target's ids: the most probable, and those noise favours.

    Options may ban the most probable ones, however little they leave: no more are left out than must be.
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
    scoring: Scoring, probs: FloatArray, first_target: FirstTokens | IntArray, num: int, listed: IntArray
) -> IntArray:
    """Return what `largest` would of all draft tokens as `Scoring.weigh` weighs them.

    The noise of a token is that of its first target token, which an encoding tells. No power of it is above the
    largest: a token that would not be among the best even with that one is not asked about.

    Args:
        scoring: with noise.
        probs: [draft_vocab_size] float32.
        first_target: the first target token of each draft token.
        num: how many to return.
        listed: the most probable tokens; more of them than `num` tell what the others must reach.
    """
    if not listed.size:
        return listed
    weighed = scoring.weigh(probs[listed], first_target[listed])
    least = _NEGLIGIBLE * weighed.max()
    if weighed.size > num:
        least = max(least, np.partition(weighed, -num)[-num])
    ids = np.flatnonzero(probs * scoring.largest_power >= least * (1.0 - _SPARE))
    return ids[largest(scoring.weigh(probs[ids], first_target[ids]), num)]


def _joined(one: IntArray, other: IntArray) -> IntArray:
    return np.array(list({*one.tolist(), *other.tolist()}), dtype=np.int64)
