"""Times of plain decoding, for pairs that do not pay at the moment."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

FIRST_PAUSE = 16
"""Rounds of the first pause at least: shorter ones notice sooner that a pair pays after all, and probe more often."""

LONGEST_PAUSE = 512
"""Rounds of a pause at most: longer ones lose less on a pair that never pays, and miss more of one that begins to."""


@dataclass
class Pause:
    """One pause.

    Attributes:
        length: rounds of all of it.
        left: rounds of it that are still to come; in the next call, where this one ends before.
    """

    length: int
    left: int


class Pauses:
    """Pauses by what they are for: a mode and a number of rows.

    Args:
        share: what a probe may cost, as a share of the plain decoding in the first pause before it; later pauses are
            longer.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self._pauses: dict[Hashable, Pause] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._pauses

    def take(self, key: Hashable) -> bool:
        """Say whether this round is one of a pause, and count it."""
        pause = self._pauses.get(key)
        if pause is None or pause.left <= 0:
            return False
        pause.left -= 1
        return True

    def begin(self, key: Hashable, probe_s: float, plain_s: float) -> None:
        """Begin a pause before a probe that takes `probe_s`, where a plain round takes `plain_s`."""
        length = min(max(FIRST_PAUSE, int(probe_s / (self.share * plain_s))), LONGEST_PAUSE)
        self._pauses[key] = Pause(length, length)

    def end(self, key: Hashable, pays: bool) -> None:
        """Go on drafting where the probe found that it pays, else pause twice as long as before."""
        if pays:
            self._pauses.pop(key, None)
        elif key in self._pauses:
            length = min(2 * self._pauses[key].length, LONGEST_PAUSE)
            self._pauses[key] = Pause(length, length)
