"""Standard speculative sampling, for a draft that shares the target's vocabulary (`sampling="rejection"`).

Algorithm 1 of Leviathan et al. (arXiv:2211.17192; Algorithm 2 of Chen et al., arXiv:2302.01318): a proposal x is
accepted with probability `min(1, target(x) / draft(x))`, and after a rejection the token is drawn from the residual
`max(target - draft, 0)`, normalized. The output has the distribution of plain sampling, but depends on the draft.
"""

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from uag.proposal import Warpers

Probs = npt.NDArray[np.float64]  # [vocab_size] float64 probabilities that sum to 1


def draw(probs: Probs, uniform: float) -> int:
    """Return the token that a uniform number in [0, 1) selects from a distribution, never one with probability 0.

    >>> [draw(np.array([0.5, 0.0, 0.5]), u) for u in (0.0, 0.499, 0.5, 0.999)]
    [0, 0, 2, 2]
    """
    sums = np.cumsum(probs)
    chosen = int(np.searchsorted(sums, uniform * sums[-1], side="right"))
    # the product can round up to the last sum, which is after every token
    return chosen if chosen < probs.size else int(np.flatnonzero(probs)[-1])


def residual(target_probs: Probs, draft_probs: Probs) -> Probs:
    """Return the distribution to draw from after the draft's proposal was rejected.

    >>> residual(np.array([0.5, 0.25, 0.25]), np.array([0.25, 0.75, 0.0]))
    array([0.5, 0. , 0.5])
    """
    remaining = np.maximum(target_probs - draft_probs, 0.0)
    total = remaining.sum()
    # For equal distributions the residual is zero, and a rejection can only be due to rounding.
    return np.asarray(remaining / total if total > 0 else target_probs, dtype=np.float64)


def is_accepted(target_prob: float, draft_prob: float, uniform: float) -> bool:
    """Whether a proposal is accepted, which has probability `min(1, target_prob / draft_prob)`."""
    return uniform * draft_prob < target_prob


def verify(target_probs: Probs, draft_probs: Probs | None, candidate: int, uniforms: tuple[float, float]) -> int:
    """Return the output token at one position: `uniforms` decide on the `candidate`, and draw after a rejection."""
    if draft_probs is None:
        return draw(target_probs, uniforms[1])
    if is_accepted(float(target_probs[candidate]), float(draft_probs[candidate]), uniforms[0]):
        return candidate
    return draw(residual(target_probs, draft_probs), uniforms[1])


def proposal_probs(
    probs: npt.NDArray[np.float32],
    vocab_size: int,
    warpers: Warpers,
    seen: Collection[int] = (),
    log_normalizer: float = 0.0,
) -> Probs | None:
    """Return the distribution over the target's ids that the draft samples from, or None if the options leave no token.

    The closer it is to the target's, the more are accepted: the target's options are applied, in transformers' order,
    to `probs` [draft_vocab_size]. Heads of equal tokenizers may be padded differently, so [vocab_size] float64 are
    returned. `log_normalizer` is the logsumexp of the logits of `probs`, for the penalty of ids in `seen`.
    """
    size = min(probs.size, vocab_size)
    with np.errstate(divide="ignore"):
        logits = np.log(probs[:size].astype(np.float64)) + log_normalizer
    if warpers.repetition_penalty != 1.0:
        ids = np.array(sorted(i for i in seen if i < size), dtype=np.int64)
        penalty = warpers.repetition_penalty
        logits[ids] = np.where(logits[ids] < 0, logits[ids] * penalty, logits[ids] / penalty)
    if warpers.banned:
        logits[[i for i in warpers.banned if i < size]] = -np.inf
    logits = logits / warpers.temperature
    highest = logits.max()
    if not np.isfinite(highest):
        return None
    weights = np.exp(logits - highest)
    if warpers.truncates:
        weights = warpers.truncate(weights)
    wide = np.zeros(vocab_size)
    wide[:size] = weights / weights.sum()
    return wide
