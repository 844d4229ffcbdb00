"""The mass that a search has assigned to each target token, and the token that leads."""

from uag.projection.pair import NO_TOKEN
from uag.projection.scoring import Scoring
from uag.proposal import Proposal

_LEAST_MASS = 1e-30
"""Minimum mass of the root after drops, because confidences are divided by it."""


class Tally:
    """The closed masses of one search; `num_targets` is the size of the target's tokenizer.

    Attributes:
        is_weighed: whether every score is a weighted mass, and the head has an entry for every token of the tokenizer.
        closed: maps a target token to the mass of continuations that begin with it.
        best_score: the best score of a closed mass.
        open_mass: mass of the open continuations that were not expanded.
        root_mass: mass of all continuations that agree with the committed text.
        log_normalizer: logsumexp of the logits at the root.
    """

    def __init__(self, scoring: Scoring, num_targets: int) -> None:
        self.scoring = scoring
        self.is_weighed = scoring.is_linear and scoring.vocab_size >= num_targets
        self.closed: dict[int, float] = {}
        self.best_score = 0.0
        self.open_mass = 0.0
        self.root_mass = 1.0
        self.log_normalizer = 0.0
        self._leading: int | None = None
        self._largest_power = scoring.largest_power

    def add(self, target_id: int, mass: float) -> None:
        """Add mass of continuations that begin with a target token."""
        if target_id == NO_TOKEN:
            return
        total = self.closed[target_id] = self.closed.get(target_id, 0.0) + mass
        if not self.is_weighed:
            score = self.scoring.score(target_id, total, self.log_normalizer)
        elif total * self._largest_power > self.best_score:
            score = total * self.scoring.power(target_id)
        else:
            return
        if score > self.best_score:
            self.best_score, self._leading = score, target_id

    def drop(self, mass: float, kept: float = 0.0) -> None:
        """Remove mass of continuations that contradict the committed text, except for `kept`."""
        self.root_mass = max(self.root_mass - mass + kept, _LEAST_MASS)

    def decide(self) -> Proposal | None:
        """Return the target token with the best score, or None."""
        # Scores only grow, so the token that led last has the best score.
        is_known = self.is_weighed and self.scoring.is_plain
        target_id = self._leading if is_known else self.scoring.choose(self.closed, self.log_normalizer)
        if target_id is None:
            return None
        # What was not read is assumed to be distributed like what was.
        read_mass = sum(self.closed.values())
        share = max(self.root_mass - self.open_mass, read_mass) / read_mass
        return Proposal(target_id, min(1.0, share * self.closed[target_id] / self.root_mass))
