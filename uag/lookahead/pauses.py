"""To be described."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Pause:
    """A time of plain decoding, in rounds.

    Attributes:
        length: of all of it.
        left: of it.
    """

    length: int
    left: int
