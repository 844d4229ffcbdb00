"""Which copies of a row's states are kept.

Keys and values are cropped. States cannot be cropped, so they are copied before a pass and put back by a rollback.
"""

from collections.abc import Iterable
from typing import Generic, TypeVar

MAX_COPIES = 16
"""Maximum copies of states per row. Increase to run fewer tokens again after a rollback; decrease to save memory."""

Copy = TypeVar("Copy")


class Copies(Generic[Copy]):
    """At most `max_copies` (3 or more) copies of a row's states. The older the copies, the wider apart.

    Attributes:
        by_length: copies in use by number of tokens, ascending.
        spare: unused copies, whose memory can be overwritten.
    """

    def __init__(self, spare: Iterable[Copy] = (), max_copies: int = MAX_COPIES) -> None:
        self.by_length: dict[int, Copy] = {}
        self.spare = list(spare)
        self._max_copies = max_copies

    def nearest(self, length: int) -> int:
        """Return the largest copied length up to `length`; 0 if there is none, since an empty cache has no states."""
        return max(known for known in (0, *self.by_length) if known <= length)

    def drop(self, first: int) -> list[Copy]:
        """Drop the copies of `first` tokens and more, and return them."""
        return self._drop([known for known in self.by_length if known >= first])

    def thin_out(self) -> list[Copy]:
        """Drop every second copy of the older half if there is no space for another one, and return them."""
        is_full = len(self.by_length) == self._max_copies
        return self._drop(list(self.by_length)[1 : -(self._max_copies // 2) : 2] if is_full else [])

    def _drop(self, lengths: Iterable[int]) -> list[Copy]:
        dropped = [self.by_length.pop(length) for length in lengths]
        self.spare += dropped
        return dropped
