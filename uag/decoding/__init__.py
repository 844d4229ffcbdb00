"""The loop: draft, verify, accept."""

from uag.decoding.call import Call
from uag.decoding.loop import run
from uag.decoding.ranks import Ranks
from uag.decoding.verdict import examine

__all__ = ["Call", "Ranks", "examine", "run"]
