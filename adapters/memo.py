"""A dictionary that does not grow for ever."""

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Memo(dict[K, V]):
    """Remember values by key; `get(key)` is None where nothing is known.

    When it is full it empties itself: what is in use comes back at once, and nothing has to be kept in order of use.

    >>> memo = Memo[str, int](2)
    >>> memo.put("a", 1), memo.put("b", 2), memo.put("c", 3)
    (None, None, None)
    >>> memo.get("a"), memo.get("c")
    (None, 3)
    """

    def __init__(self, max_entries: int) -> None:
        super().__init__()
        self.max_entries = max_entries

    def put(self, key: K, value: V) -> None:
        """Remember a value; forget everything else first where there are `max_entries` already."""
        if len(self) >= self.max_entries:
            self.clear()
        self[key] = value
