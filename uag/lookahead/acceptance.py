"""Rounds, and how often the target accepts candidates of this text, with earlier texts as the prior."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from uag.lookahead.costs import Prices
from uag.proposal import Proposal

RowOutcome = tuple[Sequence[Proposal], int]  # a row's proposals from the draft model, and how many were accepted

_TEXT_MEMORY, _PAIR_MEMORY = 16, 100  # rounds that the estimates of a text and of a pair remember
_PRIOR = 4.0  # weight of earlier texts in a new one, in rounds
_FIRST_ACCEPTANCE = 0.7  # acceptance assumed before any round


@dataclass(frozen=True)
class Round:
    """One round of drafting and verifying.

    Attributes:
        num_candidates: candidates of the longest row; the target pass had one token more per row.
        draft_s: seconds of drafting, without reading the prompt; 0 if the draft model did not run.
        outcomes: outcomes of the rows that the draft model drafted for.
        prefill_s: seconds in which the draft read the prompt; 0 if it was read before.
        is_special: the target pass also read the prompt or compiled a graph, so its time does not predict later ones.
        num_tokens: output tokens per row; None for the accepted candidates of `outcomes` and one more.
        num_draft_passes: draft passes, without the reading of the prompt; None for one per candidate.
    """

    num_candidates: int
    draft_s: float
    target_s: float
    outcomes: Sequence[RowOutcome]
    prefill_s: float = 0.0
    is_special: bool = False
    num_tokens: float | None = None
    num_draft_passes: int | None = None


class AcceptanceModel:
    """A pair's acceptance under one selection rule.

    Rounds are stored as counts rather than seconds, so that they can be priced again when cost estimates change. A
    tally sums, per row: rounds, candidates, candidates up to the first rejected one (later ones are not verified),
    accepted candidates, and how many of those the confidences predicted. Older rounds count less.
    """

    def __init__(self) -> None:
        reached = _FIRST_ACCEPTANCE ** np.arange(4)  # rounds of three candidates
        self._pair = _PRIOR * np.array([1.0, 3.0, reached[:-1].sum(), reached[1:].sum(), reached[1:].sum()])
        self.num_accepted = 0.0
        self.begin()

    def begin(self) -> None:
        self._set_text(self._pair * (_PRIOR / self._pair[0]))

    def _set_text(self, tally: npt.NDArray[np.float64]) -> None:
        self._text = tally
        sums: list[float] = tally.tolist()
        self._rounds, self._drafted, self._checked, self._accepted, self._expected = sums

    def learn(self, outcomes: Sequence[RowOutcome], num_drafted: float) -> None:
        """Add a round that drafted `num_drafted` candidates per row; no proposal counts as one rejected candidate."""
        lines = [proposals[: num_accepted + 1] for proposals, num_accepted in outcomes]
        checked = max(sum(map(len, lines)), 1)
        accepted = sum(num_accepted for _, num_accepted in outcomes)
        expected = sum(proposal.confidence for line in lines for proposal in line)
        num_rows = max(len(outcomes), 1)
        self.num_accepted += accepted / num_rows
        done = np.array([1.0, num_drafted, checked / num_rows, accepted / num_rows, expected / num_rows])
        self._pair = (1.0 - 1.0 / _PAIR_MEMORY) * self._pair + done
        self._set_text((1.0 - 1.0 / _TEXT_MEMORY) * self._text + done)

    @property
    def mean(self) -> float:
        """Probability that a candidate is accepted, given that those before it were."""
        return self._accepted / self._checked

    def rate(self, confidence: float) -> float:
        """Predict a candidate's acceptance: the odds of its confidence, scaled by how well they predicted so far."""
        odds = confidence * self._accepted * max(self._checked - self._expected, 0.0)
        odds_against = (1.0 - confidence) * self._expected * (self._checked - self._accepted)
        return odds / (odds + odds_against) if odds + odds_against > 0.0 else confidence

    def gain(self, prices: Prices) -> float:
        """Return the speed of this text's rounds at these prices, relative to plain decoding."""
        seconds = self._rounds * prices.round_s(self._drafted / self._rounds)
        return (self._rounds + self._accepted) * prices.plain_s / seconds
