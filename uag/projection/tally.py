"""The mass that a search has assigned to each target token, and the token that leads."""

from dataclasses import dataclass, field

from uag.projection.pair import NO_TOKEN
from uag.projection.scoring import Scoring
from uag.proposal import Proposal

_LEAST_MASS = 1e-30
"""Minimum mass of the root after drops, because confidences are divided by it."""


@dataclass(slots=True)
class Visit:
    """The mass of one expanded node: in total, of its open children, and by target token."""

    mass: float
    opened: float = 0.0
    closed: dict[int, float] = field(default_factory=dict)

    def share(self, target_id: int) -> float:
        """Return the estimated mass of `target_id`, assuming that unread children are distributed like read ones."""
        read_mass = self.closed.get(target_id)
        if read_mass is None:
            return 0.0
        return read_mass / sum(self.closed.values()) * max(self.mass - self.opened, read_mass)


class Tally:
    """The closed masses of one search; `num_targets` is the size of the target's tokenizer.

    Attributes:
        is_weighed: whether every score is a weighted mass, and the head has an entry for every token of the tokenizer.
        closed: maps a target token to the mass of continuations that begin with it.
        best_score: the best score of a closed mass.
        visits: the nodes that were expanded.
        root_mass: mass of all continuations that agree with the committed text.
        log_normalizer: logsumexp of the logits at the root.
    """

    def __init__(self, scoring: Scoring, num_targets: int) -> None:
        self.scoring = scoring
        self.is_weighed = scoring.is_linear and scoring.vocab_size >= num_targets
        self.closed: dict[int, float] = {}
        self.best_score = 0.0
        self.visits: list[Visit] = []
        self.root_mass = 1.0
        self.log_normalizer = 0.0
        self._leading: int | None = None
        self._largest_power = scoring.largest_power

    def visit(self, mass: float) -> Visit:
        """Start counting the mass of one node."""
        visit = Visit(mass)
        self.visits.append(visit)
        return visit

    def add(self, target_id: int, mass: float, visit: Visit) -> None:
        """Add mass of continuations that begin with a target token."""
        if target_id == NO_TOKEN:
            return
        total = self.closed[target_id] = self.closed.get(target_id, 0.0) + mass
        visit.closed[target_id] = visit.closed.get(target_id, 0.0) + mass
        if not self.is_weighed:
            score = self.scoring.score(target_id, total, self.log_normalizer)
        elif total * self._largest_power > self.best_score:
            score = total * self.scoring.power(target_id)
        else:
            return
        if score > self.best_score:
            self.best_score, self._leading = score, target_id

    def drop(self, mass: float, visit: Visit) -> None:
        """Remove the mass of continuations that contradict the end of the target's last token."""
        visit.mass -= mass
        self.root_mass = max(self.root_mass - mass, _LEAST_MASS)

    def decide(self) -> Proposal | None:
        """Return the target token with the best score, or None."""
        # Scores only grow, so the token that led last has the best score.
        is_known = self.is_weighed and self.scoring.is_plain
        target_id = self._leading if is_known else self.scoring.choose(self.closed, self.log_normalizer)
        if target_id is None:
            return None
        mass = sum(visit.share(target_id) for visit in self.visits)
        return Proposal(target_id, min(1.0, max(mass, self.closed[target_id]) / self.root_mass))
