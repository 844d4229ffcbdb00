"""How often the target accepts candidates, as the last rounds tell."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from uag.proposal import Proposal

RowOutcome = tuple[Sequence[Proposal], int]
"""A row's proposals by the draft model, and how many of them were accepted."""

_TEXT_MEMORY, _PAIR_MEMORY = 16, 100
"""Rounds that the estimates of a text and of a pair remember. Increase for steadier estimates; decrease to notice
changes sooner."""

_PRIOR = 4.0
"""Rounds that earlier texts count as in a new one. Increase to trust what is known; decrease to follow the text."""

_FIRST_LENGTH, _FIRST_ACCEPTANCE = 3, 0.7
"""What rounds are assumed to be like before any was seen. Increase to try harder pairs; decrease to lose less on them."""


@dataclass
class Tally:
    """Sums over rounds with candidates, per row; older rounds count less.

    It holds counts rather than seconds, so that the same rounds can be priced anew when costs turn out otherwise.

    Attributes:
        rounds: rounds with candidates.
        drafted: candidates.
        checked: candidates up to the first rejected one; those behind it were not verified.
        accepted: accepted candidates.
        expected: accepted candidates, had every confidence been the true probability.
    """

    rounds: float
    drafted: float
    checked: float
    accepted: float
    expected: float

    @classmethod
    def assumed(cls) -> Self:
        """Return a first guess: one round in which every candidate has the same acceptance."""
        reached = [_FIRST_ACCEPTANCE**size for size in range(_FIRST_LENGTH + 1)]
        return cls(1.0, _FIRST_LENGTH, sum(reached[:-1]), sum(reached[1:]), sum(reached[1:]))

    @classmethod
    def of_round(cls, outcomes: Sequence[RowOutcome], num_drafted: float) -> Self:
        """Return the tally of one round; drafting that proposed nothing counts as a rejected candidate."""
        num_rows = max(len(outcomes), 1)
        lines = [proposals[: num_accepted + 1] for proposals, num_accepted in outcomes]
        checked = max(sum(map(len, lines)), 1)
        accepted = sum(num_accepted for _, num_accepted in outcomes)
        expected = sum(proposal.confidence for line in lines for proposal in line)
        return cls(1.0, num_drafted, checked / num_rows, accepted / num_rows, expected / num_rows)

    def scaled(self, rounds: float) -> "Tally":
        """Return the same averages over so many rounds."""
        return Tally(*(value * rounds / self.rounds for value in vars(self).values()))

    def add(self, other: "Tally", memory: int) -> None:
        """Add another tally; what is here fades by one part in `memory`."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) * (1.0 - 1.0 / memory) + value)


class Acceptance:
    """A pair's acceptance: over the last rounds of all texts, and in the present text, which starts from those."""

    def __init__(self) -> None:
        self._pair = Tally.assumed().scaled(_PRIOR)
        self.begin()

    def begin(self) -> None:
        """Begin a new text."""
        self._text = self._pair.scaled(_PRIOR)

    def learn(self, outcomes: Sequence[RowOutcome], num_drafted: float) -> None:
        """Add a round in which so many candidates per row were paid for."""
        done = Tally.of_round(outcomes, num_drafted)
        self._text.add(done, _TEXT_MEMORY)
        self._pair.add(done, _PAIR_MEMORY)

    @property
    def mean(self) -> float:
        """Probability that a candidate is accepted, given that those before it were."""
        return self._text.accepted / self._text.checked

    def rate(self, confidence: float) -> float:
        """Predict a candidate's acceptance: the odds of its confidence, shifted by what confidences proved to be worth.

        This is Platt scaling with a slope of one; the shift is that of this text.
        """
        text = self._text
        odds = confidence * text.accepted * max(text.checked - text.expected, 0.0)
        odds_against = (1.0 - confidence) * text.expected * (text.checked - text.accepted)
        return odds / (odds + odds_against) if odds + odds_against > 0.0 else confidence

    def gain(self, plain_s: float, fixed_s: float, candidate_s: float) -> float:
        """Return how many times as fast as plain decoding the rounds of this text are at the given costs."""
        text = self._text
        seconds = text.rounds * fixed_s + text.drafted * candidate_s
        return (text.rounds + text.accepted) * plain_s / seconds
