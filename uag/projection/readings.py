"""How a draft token reads at a place of the text: what the target would have written for it."""

from typing import NamedTuple


class Closed(NamedTuple):
    """A draft token that decides a target token, before an encoding has told which.

    Attributes:
        over: text behind the committed text.
        starts: target tokens that it may be, by their bytes, the longest last.
    """

    over: bytes
    starts: tuple[int, ...]


class Open(NamedTuple):
    """A draft token that decides none yet.

    Attributes:
        over: text behind the committed text; empty where the token ends within it.
        starts: target tokens that `over` begins with or is.
        low: where the target tokens that begin with `over` and go on begin in byte order.
        high: where they end.
    """

    over: bytes
    starts: tuple[int, ...] = ()
    low: int = 0
    high: int = 0


Reading = int | Closed | Open | None
"""A draft token at a place: the target token that is decided by it (or `NO_TOKEN`), what it may become where none is
decided yet, or None where the target would not have ended a token there."""
