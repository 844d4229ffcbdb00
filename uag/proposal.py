"""What draft and target say to each other: a candidate, and the sampling options that both follow."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Proposal:
    """A candidate and what its source thinks of it.

    Attributes:
        target_id: the candidate in the target's id space.
        confidence: how sure its source is, 0 to 1; of a draft model, the share of its mass that agrees.
        is_free: it cost no draft pass (prompt lookup), so it says nothing about the draft model.
        draft_probs: [target_vocab_size] float64, what the candidate was drawn from; None where it was not drawn.
        source: where it comes from, for the statistics; empty for the name that its drafter has.
    """

    target_id: int
    confidence: float
    is_free: bool = field(default=False, compare=False)
    draft_probs: npt.NDArray[np.float64] | None = field(default=None, repr=False, compare=False)
    source: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Warpers:
    """The sampling options that the draft follows on its side; each is known to be free of state.

    Attributes:
        temperature: divides the logits; 1.0 does nothing.
        top_k: keep this many tokens; 0 keeps all.
        top_p: keep the smallest set that holds this mass; 1.0 keeps all.
        min_p: keep tokens of at least this share of the best token's probability.
        repetition_penalty: the CTRL penalty (arXiv:1909.05858) for tokens that occurred.
        banned: target ids that the target will not write at any step.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    banned: frozenset[int] = frozenset()

    @property
    def truncates(self) -> bool:
        """Whether any option leaves tokens out."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    def truncate(self, weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Set to 0 what top-k, top-p and min-p leave out of some weights, in transformers' order."""
        if self.top_k and self.top_k < weights.size:
            weights = np.where(weights < np.partition(weights, -self.top_k)[-self.top_k], 0.0, weights)
        if self.top_p < 1.0:
            order = np.argsort(-weights, kind="stable")
            before = np.cumsum(weights[order]) - weights[order]
            weights = weights.copy()
            weights[order[(before >= self.top_p * weights.sum()) & (np.arange(weights.size) > 0)]] = 0.0
        return np.where(weights < self.min_p * weights.max(), 0.0, weights)
