"""An index of texts as ids, which finds where the last ids of an output occurred before.

The latest ids are compared with the last one. When they become many, the places after all pairs of ids are sorted, so
that a search visits the places after one pair. All of these are compared, so every match is real, and the longest.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
Places = npt.NDArray[np.int64]

END = -1
"""Follows a complete text, so that no match and no continuation crosses into another text. All ids below 0, which some
models use for images, are stored as this one."""

NUM_LAST = 64  # ids of the longest match
_FEW = 16  # places that are compared with all last ids at once; more are first narrowed, one id at a time
_NUM_UNSORTED, _UNSORTED_SHARE = 16_384, 1 / 32  # ids searched without being sorted: the larger of a number and a share
_DROPPED_SHARE = 1 / 32  # share of a full index that is dropped at once, because the rest is moved and sorted again

_FACTORS = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F
"""Multipliers of the hash of a pair. Of its 64 bits the upper 32 are used, because they are mixed best."""

_LOWER_BITS = (1 << 32) - 1

_NO_ID = -2  # stands for ids before the beginning of a text; it is not in the index, so it ends every match
_BEFORE = np.arange(1, NUM_LAST + 2)  # distances of the ids before a place that are compared with `last`
_FIRST = NUM_LAST + 1  # the first place. The ids before it are `END`, so that as many ids can be read before any place


class KnownIds:
    """The latest `most` ids of texts in the order of `append`, 12 bytes each. A place is an index of an id."""

    def __init__(self, most: int = np.iinfo(np.int32).max) -> None:
        self._most = most
        self._ids = np.full(_FIRST, END, np.int32)  # of which the first ones stay, so that any match can be compared
        self.end = self._sorted_end = _FIRST
        self._sorted = np.empty(0, np.uint64)  # for every place: hash of the pair before it << 32 | place

    @property
    def ids(self) -> Ids:
        return self._ids[_FIRST : self.end]

    def append(self, ids: Sequence[int] | Ids) -> None:
        """Append ids. If there are more than `most`, the first ones are dropped, and places change."""
        new = np.maximum(np.asarray(ids, np.int32)[-self._most :], END)
        if self.end + len(new) > len(self._ids):
            kept = self.ids
            num_excess = len(kept) + len(new) - self._most
            if num_excess > 0:
                kept = kept[num_excess + int(_DROPPED_SHARE * self._most) :]
                self._sorted, self._sorted_end = self._sorted[:0], _FIRST
            room = min(2 * (len(kept) + len(new)), self._most) - len(kept)
            self._ids = np.concatenate([self._ids[:_FIRST], kept, np.empty(room, np.int32)])
            self.end = _FIRST + len(kept)
        self._ids[self.end : self.end + len(new)] = new
        self.end += len(new)

    def find(self, last_ids: Sequence[int]) -> tuple[int, Places]:
        """Return how many of the last ids of a text match at most (up to `NUM_LAST`), and the places after matches."""
        last = np.full(NUM_LAST + 1, _NO_ID)
        last[: min(len(last_ids), NUM_LAST)] = last_ids[: -NUM_LAST - 1 : -1]  # the last one first
        places = self._places_after(*last[:2].tolist())
        num_matching = 1
        while len(places) > _FEW:
            matching = places[self._ids[places - num_matching - 1] == last[num_matching]]
            if not len(matching):
                return num_matching, places
            places, num_matching = matching, num_matching + 1
        if not len(places):
            return 0, places
        lengths = (self._ids[places[:, None] - _BEFORE] == last).argmin(axis=1)
        return int(lengths.max()), places[lengths == lengths.max()]

    def _places_after(self, last: int, before: int) -> Places:
        """Return the places after the last of two ids; of the sorted ones, those after a pair with their hash."""
        if self.end - self._sorted_end > max(_NUM_UNSORTED, _UNSORTED_SHARE * self.end):
            self._sort()
        places = np.flatnonzero(self._ids[self._sorted_end - 1 : self.end - 1] == last) + self._sorted_end
        if len(self._sorted):
            start = (before * _FACTORS[0] + last * _FACTORS[1]) % (1 << 64) & ~_LOWER_BITS
            first, end = np.searchsorted(self._sorted, np.array([start, start | _LOWER_BITS], np.uint64))
            places = np.concatenate([(self._sorted[first:end] & np.uint64(_LOWER_BITS)).astype(np.int64), places])
        is_match = (self._ids[places - 1] == last) & (self._ids[places] != END)
        matching: Places = places[is_match]
        return matching

    def _sort(self) -> None:
        # With numbers of 64 bits, which are sorted several times as fast as pairs of numbers.
        ids = self._ids[_FIRST - 2 : self.end - 1].astype(np.uint64)
        hashes = (ids[:-1] * np.uint64(_FACTORS[0]) + ids[1:] * np.uint64(_FACTORS[1])) & ~np.uint64(_LOWER_BITS)
        self._sorted = np.sort(hashes | np.arange(_FIRST, self.end, dtype=np.uint64))
        self._sorted_end = self.end

    def look_up(self, last_ids: Sequence[int], num: int) -> tuple[int, list[int]]:
        """Return how many of the last ids match, and up to `num` ids that followed the latest such match."""
        num_matching, places = self.find(last_ids)
        return num_matching, self.continuation(int(places[-1]), num) if num_matching else []

    def continuation(self, place: int, num: int) -> list[int]:
        """Return up to `num` ids from a place to the end of its text."""
        ids: list[int] = self._ids[place : min(place + num, self.end)].tolist()
        return ids[: ids.index(END)] if END in ids else ids
