"""An index of the n-grams of many texts, in a fixed amount of memory.

Texts are stored one after the other in a ring of ids, and the oldest ids are overwritten first. For each n-gram length
there is a hash table of the latest slot after an n-gram, and each slot refers to the previous one in the same bucket.
Entries are never removed: every slot that a chain leads to is compared with the n-gram, so stale entries, other n-grams
in the same bucket and hash collisions are skipped.
"""

from array import array
from bisect import bisect
from collections.abc import Iterator, Sequence
from itertools import chain, islice

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]

END = -1
"""Follows every text in the ring, so that no n-gram and no continuation crosses into another text."""

LENGTHS = (2, 4, 16)
"""Lengths of the n-grams; each takes 8 bytes per token. Add longer ones to tell similar texts apart; add shorter ones
to find more."""

MAX_SIZE = np.iinfo(np.int32).max
"""Maximum number of slots, which are stored in 32 bits."""

NUM_LAST = LENGTHS[-1]
"""Number of last ids that a look-up uses."""

_MAX_VISITED = 8
"""Maximum number of slots that are compared per length. Increase to find n-grams in crowded buckets; decrease for
faster look-ups."""

_MAX_FOUND = 4
"""Maximum number of occurrences that are returned. Increase for better estimates of frequencies; decrease for faster
look-ups."""

_FACTORS = [pow(0x9E3779B97F4A7C15, place, 1 << 64) for place in range(1, NUM_LAST + 1)]
"""Factor of each id in the hash of the n-gram that it belongs to, from the last id backward."""

_MASK, _SHIFT = (1 << 64) - 1, 32  # a hash is the upper half of a sum of 64 bits, whose lower bits are mixed less


class NgramIndex:
    """Finds where the last ids of a text occurred before.

    Args:
        size: number of slots of the ring; the index takes 4 + 8 * len(LENGTHS) = 28 bytes for each.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._next = 0  # the slot that is overwritten next
        self._ids = np.full(size, END, dtype=np.int32)
        # Slot 0 follows no n-gram, so 0 stands for an empty bucket and the end of a chain.
        self._latest = [np.zeros(size, dtype=np.int32) for _ in LENGTHS]
        self._previous = [np.zeros(size, dtype=np.int32) for _ in LENGTHS]
        # Reading an element of a memoryview takes half as long as one of an array.
        self._bytes = self._ids.data.cast("B")
        self._chains = [
            (of_latest.data, of_previous.data)
            for of_latest, of_previous in zip(self._latest, self._previous, strict=True)
        ]

    def __len__(self) -> int:
        return int(np.count_nonzero(self._ids != END))

    def all_ids(self) -> Ids:
        """Return the stored texts, oldest first, with `END` between them."""
        ids = np.roll(self._ids, -self._next)
        is_repeated_end = (ids == END) & (np.roll(ids, 1) == END)
        kept: Ids = ids[~is_repeated_end]
        return kept

    def append(self, ids: Ids) -> None:
        """Store a text, or several with `END` between them. The start is dropped if they are longer than the ring."""
        ids = ids[-(self._size - 1) :]
        if self._next + len(ids) >= self._size:
            self._ids[self._next :] = END
            self._next = 0
        start, end = self._next, self._next + len(ids)
        self._ids[start:end] = ids
        self._ids[end] = END
        self._next = (end + 1) % self._size
        sums = np.zeros(len(ids), dtype=np.uint64)  # of the ids before each slot
        values = ids.astype(np.uint64)
        for length, factor in enumerate(_FACTORS[: max(len(ids) - 1, 0)], 1):
            sums[length:] += values[:-length] * np.uint64(factor)
            if length in LENGTHS:
                buckets = (sums[length:] >> np.uint64(_SHIFT)) % np.uint64(self._size)
                has_more = ids[length:] != END  # a loaded memory is stored at once, with the ends of its texts
                slots = np.arange(start + length, end, dtype=np.int32)
                self._link(LENGTHS.index(length), buckets[has_more], slots[has_more])

    def _link(self, level: int, buckets: npt.NDArray[np.uint64], slots: Ids) -> None:
        """Put slots into buckets, in ascending order."""
        order = np.argsort(buckets, kind="stable")
        buckets, slots = buckets[order], slots[order]
        previous = self._latest[level][buckets]
        is_repeated = buckets[1:] == buckets[:-1]
        previous[1:][is_repeated] = slots[:-1][is_repeated]
        self._previous[level][slots] = previous
        self._latest[level][buckets] = slots  # the last of equal buckets remains

    def occurrences(self, last_ids: Sequence[int]) -> tuple[int, list[int]]:
        """Return the length of the longest stored n-gram at the end of some ids, and the slots after it, latest first.

        The length is 0 if there is none. Shorter n-grams are looked up first, because most misses end there.
        """
        last_ids = last_ids[-NUM_LAST:]
        data = array("i", last_ids).tobytes()
        longest, total, num_summed = 0, 0, 0
        slots: Iterator[int] = iter(())
        for level, length in enumerate(LENGTHS[: bisect(LENGTHS, len(last_ids))]):
            for place in range(num_summed, length):
                total += last_ids[-1 - place] * _FACTORS[place]
            num_summed = length
            found = self._walk(level, ((total & _MASK) >> _SHIFT) % self._size, data[-4 * length :])
            latest = next(found, None)
            if latest is None:
                break
            longest, slots = length, chain((latest,), found)
        return longest, list(islice(slots, _MAX_FOUND))

    def _walk(self, level: int, bucket: int, ngram: bytes) -> Iterator[int]:
        """Yield the slots of a bucket that follow an n-gram, latest first."""
        latest, previous = self._chains[level]
        stored, num_bytes, size, end = self._bytes, len(ngram), self._size, self._next
        slot, last_age = latest[bucket], -1
        for _ in range(_MAX_VISITED):
            age = (end - slot) % size
            if slot == 0 or age <= last_age:  # the end of the chain, or a slot that was overwritten
                break
            if stored[4 * slot - num_bytes : 4 * slot] == ngram:
                yield slot
            slot, last_age = previous[slot], age

    def continuation(self, slot: int, num: int) -> tuple[int, ...]:
        """Return up to `num` ids from a slot to the end of its text."""
        ids = tuple(self._ids[slot : slot + num].tolist())
        return ids[: ids.index(END)] if END in ids else ids

    def num_equal(self, slot: int, ids: Ids) -> int:
        """Return how many of the ids from a slot on equal the first of `ids`."""
        stored = self._ids[slot : slot + len(ids)]
        is_different = stored != ids[: len(stored)]
        return int(is_different.argmax()) if is_different.any() else len(stored)
