"""An index of the n-grams of many texts, in a fixed amount of memory.

Texts are stored in a ring of ids. For each n-gram length there is a hash table of the latest slot after an n-gram, and
each slot refers to the previous one in the same bucket. Entries are never removed: the ids before every slot that a
chain leads to are compared, so overwritten texts and hash collisions are skipped.
"""

from collections.abc import Sequence
from operator import mul

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]

END = -1
"""Follows every text in the ring, so that no n-gram and no continuation crosses into another text."""

LENGTHS = (2, 4, 16)
"""Lengths of the n-grams; each takes 8 bytes per token. Add longer ones to tell similar texts apart; add shorter ones
to find more."""

NUM_LAST = LENGTHS[-1]
"""Number of last ids that a look-up uses."""

MAX_SIZE = np.iinfo(np.int32).max - NUM_LAST
"""Maximum number of slots, which are stored in 32 bits."""

_MAX_VISITED, _MAX_FOUND = 8, 4
"""Maximum number of slots that are compared per length, and of occurrences that are returned. Increase to find n-grams
in crowded buckets and to estimate frequencies better; decrease for faster look-ups."""

_FACTORS = [pow(0x9E3779B97F4A7C15, place, 1 << 64) for place in range(1, NUM_LAST + 1)]
"""Multipliers of the n-gram hash. Only the upper 32 of its 64 bits are used, because they are mixed best."""


class NgramIndex:
    """Finds where the last ids of a text occurred before.

    For each of the `size` slots of the ring, it takes 4 + 8 * len(LENGTHS) = 28 bytes, as they are used.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._next = self._used = NUM_LAST  # the slot that is written next, and the number of slots written so far
        self._ids = np.empty(NUM_LAST + size, dtype=np.int32)
        self._ids[:NUM_LAST] = END  # never overwritten, so that `NUM_LAST` ids before any other slot can be read
        # The latest slot of each bucket and the previous one of each slot; 0 stands for none.
        self._tables = {n: (np.zeros(size, np.int32), np.empty(NUM_LAST + size, np.int32)) for n in LENGTHS}

    def __len__(self) -> int:
        return int(np.count_nonzero(self._ids[: self._used] != END))

    def all_ids(self) -> Ids:
        """Return the stored texts, oldest first, with `END` between them."""
        ids = np.concatenate([self._ids[self._next : self._used], self._ids[NUM_LAST : self._next]])
        kept: Ids = ids[(ids != END) | (np.roll(ids, 1) != END)]
        return kept

    def append(self, ids: Ids) -> None:
        """Store a text, or several with `END` between them. The start is dropped if they are longer than the ring."""
        ids = ids[-(self._size - 1) :]
        if self._next + len(ids) >= len(self._ids):
            self._ids[self._next : self._used] = END
            self._next = NUM_LAST
        start, end = self._next, self._next + len(ids)
        self._ids[start:end], self._ids[end] = ids, END
        self._next, self._used = end + 1, max(self._used, end + 1)
        for length, (latest, previous) in self._tables.items():
            if len(ids) > length:
                has_more = ids[length:] != END  # a loaded memory is stored at once, with the ends of its texts
                slots = np.arange(start + length, end, dtype=np.int32)[has_more]
                buckets = self._buckets(ids[:-1], length)[has_more]
                order = np.argsort(buckets, kind="stable")
                buckets, slots = buckets[order], slots[order]
                is_repeated = buckets[1:] == buckets[:-1]
                before = latest[buckets]
                before[1:][is_repeated] = slots[:-1][is_repeated]
                previous[slots] = before
                latest[buckets] = slots  # the last of equal buckets remains

    def _buckets(self, ids: Ids, length: int) -> npt.NDArray[np.uint64]:
        """Return the bucket of each n-gram; see `_find` for one of them."""
        ngrams = np.lib.stride_tricks.sliding_window_view(ids.astype(np.uint64), length)
        totals = ngrams @ np.array(_FACTORS[:length], np.uint64)
        buckets: npt.NDArray[np.uint64] = (totals >> np.uint64(32)) % np.uint64(self._size)
        return buckets

    def occurrences(self, last_ids: Sequence[int]) -> tuple[int, list[int]]:
        """Return the length of the longest stored n-gram at the end of some ids, and the slots after it, latest first.

        The length is 0 if there is none.
        """
        longest, found = 0, list[int]()
        for length in LENGTHS:  # most misses end at the shortest
            slots = self._find(list(last_ids[-length:]), length) if len(last_ids) >= length else []
            if not slots:
                break
            longest, found = length, slots
        return longest, found[:_MAX_FOUND]

    def _find(self, ngram: list[int], length: int) -> list[int]:
        """Return the slots after an n-gram, latest first."""
        latest, previous = self._tables[length]
        total = sum(map(mul, ngram, _FACTORS)) & ((1 << 64) - 1)
        slot, age, found = int(latest[(total >> 32) % self._size]), -1, list[int]()
        for _ in range(_MAX_VISITED):
            newer, age = age, (self._next - slot) % self._size
            if slot == 0 or age <= newer:  # the end of the chain, or a slot that was overwritten
                break
            if self._ids[slot - length : slot].tolist() == ngram:
                found.append(slot)
            slot = int(previous[slot])
        return found

    def continuation(self, slot: int, num: int) -> tuple[int, ...]:
        """Return up to `num` ids from a slot to the end of its text."""
        ids = tuple(self._ids[slot : slot + num].tolist())
        return ids[: ids.index(END)] if END in ids else ids

    def num_equal(self, slot: int, ids: Ids) -> int:
        """Return how many of the ids from a slot on equal the first of `ids`."""
        stored = self._ids[slot : slot + len(ids)]
        differs = stored != ids[: len(stored)]
        return int(differs.argmax()) if differs.any() else len(stored)
