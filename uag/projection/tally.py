"""What a search has decided: the mass of each target token, and which of them leads."""

from uag.projection.first_tokens import NO_TOKEN
from uag.projection.frontier import Visit
from uag.projection.scoring import Scoring
from uag.proposal import Proposal

_LEAST_MASS = 1e-30
"""Mass that the root keeps whatever is dropped: confidences are shares of it."""


class Tally:
    """The closed masses of one search.

    Args:
        scoring: how masses become scores.
        num_targets: entries of the target's tokenizer.

    Attributes:
        is_weighed: every score is a weighed mass: the head has an entry for every token that the tokenizer has.
        closed: target token -> the mass that is decided to be its.
        best_score: of the closed masses.
        leading: the token that has it; None before any has.
        visits: the nodes that were expanded.
        root_mass: mass of all continuations that agree with the committed text.
        log_normalizer: logsumexp of the logits at the root.
    """

    def __init__(self, scoring: Scoring, num_targets: int) -> None:
        self.scoring = scoring
        self.is_weighed = scoring.is_linear and scoring.vocab_size >= num_targets
        self.closed: dict[int, float] = {}
        self.best_score = 0.0
        self.leading: int | None = None
        self.visits: list[Visit] = []
        self.root_mass = 1.0
        self.log_normalizer = 0.0
        self._largest_power = scoring.largest_power

    def visit(self, mass: float) -> Visit:
        """Begin to count what one node gives."""
        visit = Visit(mass)
        self.visits.append(visit)
        return visit

    def add(self, target_id: int, mass: float, visit: Visit) -> None:
        """Count mass that is decided to be a target token's."""
        if target_id == NO_TOKEN:
            return
        total = self.closed[target_id] = self.closed.get(target_id, 0.0) + mass
        visit.closed[target_id] = visit.closed.get(target_id, 0.0) + mass
        if self.is_weighed:
            if total * self._largest_power <= self.best_score:
                return
            score = total * self.scoring.power(target_id)
        else:
            score = self.scoring.score(target_id, total, self.log_normalizer)
        if score > self.best_score:
            self.best_score, self.leading = score, target_id

    def drop(self, mass: float, visit: Visit) -> None:
        """Leave out mass of continuations that the target, having ended a token here, is not about to write."""
        visit.mass -= mass
        self.root_mass = max(self.root_mass - mass, _LEAST_MASS)

    def decide(self) -> Proposal | None:
        """Return the target token of the best score, None where there is none."""
        # Scores only grow, so the best of a sum is the one that led last.
        is_known = self.is_weighed and self.scoring.is_plain
        target_id = self.leading if is_known else self.scoring.choose(self.closed, self.log_normalizer)
        if target_id is None:
            return None
        mass = sum(visit.share(target_id) for visit in self.visits)
        return Proposal(target_id, min(1.0, max(mass, self.closed[target_id]) / self.root_mass))
