"""The draft tokens worth looking at, without asking about all of them."""

import numpy as np
import numpy.typing as npt

from uag.projection.first_tokens import FirstTokens
from uag.projection.scoring import Scoring
from uag.projection.tree import FloatArray

_NEGLIGIBLE = 1e-5
"""Share of the largest value below which a value is not worth ranking."""

_WEIGHED_FIRST = 256
"""The most probable tokens, weighed to tell what the others must reach: more tell it better and are more to weigh."""


def largest(values: FloatArray, num: int) -> npt.NDArray[np.int64]:
    """Return the positions of the `num` largest values, in no order; fewer where the rest is negligible."""
    found = np.flatnonzero(values >= _NEGLIGIBLE * values.max())
    if found.size <= num:
        return found
    return found[np.argpartition(values[found], found.size - num)[found.size - num :]]


def best_weighed(scoring: Scoring, probs: FloatArray, first_target: FirstTokens, num: int) -> npt.NDArray[np.int64]:
    """Return what `largest` would of all draft tokens as `Scoring.weigh` weighs them.

    The noise of a token is that of its first target token, which an encoding tells. No noise is above the largest: a
    token that would not be among the best even with that one is not asked about.

    Args:
        scoring: with noise.
        probs: [draft_vocab_size] float32.
        first_target: the first target token of each draft token.
        num: how many to return.
    """
    inverse = scoring.inverse_noise
    if inverse is None:
        return largest(probs, num)
    ids = np.arange(probs.size, dtype=np.int64)
    if probs.size > _WEIGHED_FIRST >= num:
        likely = np.argpartition(probs, -_WEIGHED_FIRST)[-_WEIGHED_FIRST:]
        weighed = scoring.weigh(probs[likely], first_target[likely])
        least = max(np.partition(weighed, -num)[-num], _NEGLIGIBLE * weighed.max())
        ids = np.flatnonzero(probs * inverse.max() >= least)
    return ids[largest(scoring.weigh(probs[ids], first_target[ids]), num)]
