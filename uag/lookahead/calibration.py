"""How often the draft is right, by how sure it is."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from uag.proposal import Proposal

_BINS = 10
"""Ranges of confidence that are told apart: more follow the draft more closely, and learn more slowly."""

_PRIOR = 4.0
"""Candidates that the draft's own confidence counts as: higher trusts it longer, and learns more slowly."""

_MEAN_PRIOR = 0.7
"""Acceptance expected before any was measured: higher drafts further at first, and loses more on a bad pair."""

_FADING = 0.99
"""What a measured candidate counts after the next one: higher is steadier, and follows the text more slowly."""

_MEAN_FADING = 0.997
"""The same for the mean: over some texts, since how a text differs from them is seen from its own rounds."""


@dataclass
class Calibration:
    """How often a candidate of some confidence was accepted, given that those before it were.

    Counts fade, so that the calibration follows the text. The mean has counts of its own: a confidence that has become
    rare keeps what is known of it, and would weigh in the mean as much as before.
    """

    accepted: list[float] = field(default_factory=lambda: [0.0] * _BINS)
    seen: list[float] = field(default_factory=lambda: [0.0] * _BINS)
    _all_accepted: float = field(default=0.0, init=False)
    _all_seen: float = field(default=0.0, init=False)

    def rate(self, confidence: float) -> float:
        """Predict the acceptance of a candidate."""
        cell = _cell(confidence)
        return (self.accepted[cell] + _PRIOR * confidence) / (self.seen[cell] + _PRIOR)

    def learn(self, confidence: float, was_accepted: bool) -> None:
        """Add one verified candidate."""
        cell = _cell(confidence)
        self.accepted[cell] = _FADING * self.accepted[cell] + was_accepted
        self.seen[cell] = _FADING * self.seen[cell] + 1.0
        self._all_accepted = _MEAN_FADING * self._all_accepted + was_accepted
        self._all_seen = _MEAN_FADING * self._all_seen + 1.0

    def learn_row(self, proposals: Sequence[Proposal], num_accepted: int) -> None:
        """Add a row's candidates: those accepted and the first one rejected; the others were not verified."""
        for position, proposal in enumerate(proposals[: num_accepted + 1]):
            self.learn(proposal.confidence, position < num_accepted)

    @property
    def mean(self) -> float:
        """Acceptance of the latest candidates, whatever their confidence, with a prior."""
        return (self._all_accepted + _PRIOR * _MEAN_PRIOR) / (self._all_seen + _PRIOR)


def _cell(confidence: float) -> int:
    return min(int(confidence * _BINS), _BINS - 1)
