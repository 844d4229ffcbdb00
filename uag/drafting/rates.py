"""Acceptance rates of free candidates, by their evidence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Evidence = tuple[str, int]
"""The evidence for a candidate: its kind and its level, such as the length of a match."""

_PRIOR_WEIGHT = 4.0
"""Number of checked candidates that a prior counts as. Increase for steadier rates; decrease to learn faster."""

_FADING = 0.98
"""Weight of a checked candidate relative to the next one. Increase for steadier rates; decrease to learn faster."""


@dataclass
class AcceptanceRates:
    """Acceptance rates by evidence, kept between calls.

    Attributes:
        priors: initial rates, by kind and level.
        accepted: number of accepted candidates; older ones count less.
        checked: number of checked candidates; older ones count less.
    """

    priors: Mapping[str, Sequence[float]]
    accepted: dict[Evidence, float] = field(default_factory=dict)
    checked: dict[Evidence, float] = field(default_factory=dict)

    def __getitem__(self, evidence: Evidence) -> float:
        """Return the predicted acceptance rate of candidates with this evidence."""
        kind, level = evidence
        accepted = self.accepted.get(evidence, 0.0) + _PRIOR_WEIGHT * self.priors[kind][level]
        return accepted / (self.checked.get(evidence, 0.0) + _PRIOR_WEIGHT)

    def learn(self, evidence: Sequence[Evidence], num_accepted: int) -> None:
        """Learn from a round's checked candidates: the accepted ones and the first rejected one."""
        for index, each in enumerate(evidence[: num_accepted + 1]):
            self.accepted[each] = _FADING * self.accepted.get(each, 0.0) + (index < num_accepted)
            self.checked[each] = _FADING * self.checked.get(each, 0.0) + 1.0
