"""The loop: draft, verify, accept."""

from uag.decoding.call import Call
from uag.decoding.loop import run
from uag.decoding.ranks import Ranks

__all__ = ["Call", "Ranks", "run"]
