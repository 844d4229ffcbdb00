"""Acceptance rates of free candidates, by the evidence for them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Evidence = tuple[str, int]
"""What speaks for a candidate: a kind, and a class of it, such as the length of a match."""

_PRIOR_WEIGHT = 4.0
"""Checked candidates that a prior counts as. Increase for steadier rates; decrease to learn faster."""

_FADING = 0.98
"""Weight of a checked candidate relative to the next one. Increase for steadier rates; decrease to learn faster."""


@dataclass
class AcceptanceRates:
    """Acceptance rates by evidence, kept between calls.

    Attributes:
        priors: rates expected before anything was learned, by kind and class.
        accepted: candidates that were accepted; older ones count less.
        checked: candidates that were checked; older ones count less.
    """

    priors: Mapping[str, Sequence[float]]
    accepted: dict[Evidence, float] = field(default_factory=dict)
    checked: dict[Evidence, float] = field(default_factory=dict)

    def __getitem__(self, evidence: Evidence) -> float:
        """Predict the acceptance rate of candidates with some evidence."""
        kind, level = evidence
        accepted = self.accepted.get(evidence, 0.0) + _PRIOR_WEIGHT * self.priors[kind][level]
        return accepted / (self.checked.get(evidence, 0.0) + _PRIOR_WEIGHT)

    def learn(self, evidence: Sequence[Evidence], num_accepted: int) -> None:
        """Learn from the candidates of a round that were checked: the accepted ones and the first rejected one."""
        for place, each in enumerate(evidence[: num_accepted + 1]):
            self.accepted[each] = _FADING * self.accepted.get(each, 0.0) + (place < num_accepted)
            self.checked[each] = _FADING * self.checked.get(each, 0.0) + 1.0
