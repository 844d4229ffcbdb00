"""Acceptance of a draft on texts of its target.

*Agreement* is the share of tokens that are the projection's first choice, measured at every token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from uag.measure.replay import Replay
from uag.measure.writing import Text


@dataclass(frozen=True)
class Acceptance:
    """Acceptance of a draft on texts of its target.

    Attributes:
        temperature: temperature of the texts; 0 is greedy.
        num_texts: texts measured.
        num_tokens: tokens at which agreement was measured.
        agreement: share of these tokens that were the projection's first choice.
    """

    temperature: float
    num_texts: int
    num_tokens: int
    agreement: float

    @property
    def mode(self) -> str:
        """The label of the temperature in tables."""
        return f"temperature {self.temperature:g}" if self.temperature else "greedy"


def measure_acceptance(replay: Replay, texts: Sequence[Text]) -> Acceptance:
    """Measure acceptance on texts of one temperature."""
    counts = list(replay.count(texts))
    num_tokens, num_agreed = (sum(of_text) for of_text in zip(*counts, strict=True))
    return Acceptance(texts[0].temperature, len(texts), num_tokens, num_agreed / max(num_tokens, 1))
