"""The data that drafts and the target share: candidates, and sampling options."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Proposal:
    """A candidate, with its source's confidence in it.

    Attributes:
        target_id: the candidate's target id.
        confidence: 0 to 1; for a draft model, the share of its probability mass that agrees.
        is_free: whether it needed no draft pass (as in prompt lookup), so that it is no evidence about the draft model.
        draft_probs: [target_vocab_size] float64, the distribution that it was drawn from; None if it was not drawn.
        source: its source in the statistics; empty for the `source` of its drafter.
    """

    target_id: int
    confidence: float
    is_free: bool = field(default=False, compare=False)
    draft_probs: npt.NDArray[np.float64] | None = field(default=None, repr=False, compare=False)
    source: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Warpers:
    """The stateless sampling options that the draft applies too, where they change anything.

    The repetition penalty is CTRL's (arXiv:1909.05858), and `banned` are ids that the target never writes.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    banned: frozenset[int] = frozenset()

    @property
    def truncates(self) -> bool:
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    def truncate(self, weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Zero the weights that top-k, top-p and min-p remove, in transformers' order."""
        if self.top_k and self.top_k < weights.size:
            weights = np.where(weights < np.partition(weights, -self.top_k)[-self.top_k], 0.0, weights)
        if self.top_p < 1.0:
            order = np.argsort(-weights, kind="stable")
            before = np.cumsum(weights[order]) - weights[order]
            weights = weights.copy()
            weights[order[(before >= self.top_p * weights.sum()) & (np.arange(weights.size) > 0)]] = 0.0
        return np.where(weights < self.min_p * weights.max(), 0.0, weights)


def num_equal(ids: Iterable[int | str], others: Iterable[int | str]) -> int:
    """Return the length of the longest common prefix of two sequences.

    >>> num_equal([1, 2, 3], [1, 2, 4, 5])
    2
    """
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ids, others, strict=False)))
