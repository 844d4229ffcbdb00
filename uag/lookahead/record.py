"""What drafting has come to lately: the tokens that its rounds made, beside the seconds that they took.

Where a text is hard, a prediction from all that was accepted before promises too much for long, and where it is easy,
too little.
"""

from dataclasses import dataclass

_FADING = 0.93
"""What a round counts after the next one: higher is steadier, and notices later that a text has become hard or easy."""

_KEPT = 0.5
"""What rounds before a pause count behind it: higher goes on from there, lower from the prediction."""


@dataclass
class Record:
    """Tokens of a row and seconds of the rounds with candidates, older rounds counting less."""

    tokens: float = 0.0
    seconds: float = 0.0

    def add(self, tokens: float, seconds: float) -> None:
        """Add a round: the tokens that a row got on average, and seconds of drafting and verifying."""
        self.tokens = _FADING * self.tokens + tokens
        self.seconds = _FADING * self.seconds + seconds

    def rate(self, predicted: float, seconds: float) -> float:
        """Return tokens per second: what was measured, and what was predicted as if it were measured for `seconds`."""
        return (self.tokens + predicted * seconds) / (self.seconds + seconds)

    def forget(self) -> None:
        """Let what was measured count less, since the text goes on without drafting."""
        self.tokens *= _KEPT
        self.seconds *= _KEPT
