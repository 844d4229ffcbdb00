"""A time of plain decoding, for a pair that does not pay at the moment."""

from dataclasses import dataclass

FIRST_PAUSE = 16
"""Rounds of the first pause at least: shorter ones notice sooner that a pair pays after all, and probe more often."""

LONGEST_PAUSE = 512
"""Rounds of a pause at most: longer ones lose less on a pair that never pays, and miss more of one that begins to."""

SHARE, SHARE_OF_REQUESTS = 0.1, 0.05
"""What a probe may cost, as a share of the first pause before it, in a batch and where each row is a request of its
own: higher notices sooner that a pair pays, and loses more."""


@dataclass
class Pause:
    """Rounds of plain decoding before a probe.

    One that outlasts a call goes on in the next one where the pair does not pay, and is cancelled where only the text
    was hard.

    Attributes:
        length: rounds of all of it; 0 where drafting has paid for long.
        left: rounds of it that are still to come.
        is_over: drafting goes on, until the next pause begins.
    """

    length: int = 0
    left: int = 0
    is_over: bool = True

    def take(self) -> bool:
        """Say whether this round is one of the pause, and count it."""
        is_paused = self.left > 0
        self.left = max(self.left - 1, 0)
        return is_paused

    def begin(self, probe_s: float, plain_s: float, share: float) -> None:
        """Begin a pause: the probe behind the first takes `probe_s`, at most `share` of its rounds of `plain_s`.

        Where drafting did not pay for long since the last one, it is twice as long.
        """
        length = 2 * self.length or max(FIRST_PAUSE, int(probe_s / (share * plain_s)))
        self.length = self.left = min(length, LONGEST_PAUSE)
        self.is_over = False

    def end(self, pays: bool) -> None:
        """Go on drafting where the probe found that it pays, else pause twice as long as before."""
        self.is_over = pays
        if not pays:
            self.length = self.left = min(2 * self.length, LONGEST_PAUSE)

    def cancel(self) -> None:
        """Go on drafting as if there had been no pause."""
        self.length = self.left = 0
        self.is_over = True
