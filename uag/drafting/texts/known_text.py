"""A text that is known beforehand, and where in it the last symbols of an output occur.

Symbols are the characters of a `str`, so that every search runs in C: bytes stand as the characters of those numbers
(`latin-1`), ids as the characters that have their numbers.
"""

import re
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from uag.errors import OptionError

_MOST_SYMBOLS = 0x110000
"""Characters that there are: a vocabulary of more ids does not exist yet."""

_WORD = re.compile("[0-9A-Za-z_\x80-\xff]*")
"""A word in bytes; bytes of 128 and more are parts of letters in most texts."""

_FACTOR, _MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1
"""An odd multiplier that spreads n-grams over 64 bits; places are compared before they are believed."""


class Known:
    """A text that the output is expected to follow.

    Args:
        symbols: the text, see above.
        grain: symbols of a usual token: what counts as one step of evidence.

    Attributes:
        symbols: the text.
        grain: as given.
        is_words: whether symbols are bytes of text, in which words and lines can be told.
        far: symbols that must match for a place far away.
    """

    def __init__(self, symbols: str, grain: int) -> None:
        self.symbols = symbols
        self.grain = grain
        self.is_words = grain > 1
        self.far = 3 * grain if self.is_words else 3

    @classmethod
    def of_bytes(cls, data: bytes) -> "Known":
        """Make one of text, as bytes."""
        return cls(data.decode("latin-1"), 4)

    @classmethod
    def of_ids(cls, ids: Sequence[int]) -> "Known":
        """Make one of ids.

        Raises:
            OptionError: a number that is no id.
        """
        wrong = next((i for i in ids if not 0 <= i < _MOST_SYMBOLS), None)
        if wrong is not None:
            raise OptionError(f"prediction holds {wrong}, which is no id of a token. Ids count from 0.")
        return cls("".join(map(chr, ids)), 1)

    def __len__(self) -> int:
        return len(self.symbols)

    def word_end(self, place: int) -> int:
        """Return where the word that goes on at a place ends; the place itself where none does."""
        found = _WORD.match(self.symbols, place, place + 256)
        return place if found is None else found.end()

    @cached_property
    def _index(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """Return the n-grams of `far` symbols as sorted numbers, and where each ends; equal ones in order of place."""
        codes = np.frombuffer(self.symbols.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        hashes = _hashes(codes, self.far)
        order = np.argsort(hashes, kind="stable")
        return hashes[order], order + self.far

    def far_place(self, tail: str, place: int) -> int | None:
        """Return the place behind the last `far` symbols of `tail`: the next one at or behind `place`, else the last.

        Takes a time that grows with the logarithm of the text's length; the first search reads all of it once.
        """
        if len(tail) < self.far or len(self.symbols) < self.far:
            return None
        hashes, ends = self._index
        wanted = np.uint64(_hash(tail[-self.far :]))
        first, last = hashes.searchsorted(wanted, "left"), hashes.searchsorted(wanted, "right")
        if first == last:
            return None
        ahead = first + ends[first:last].searchsorted(place)
        found = int(ends[ahead if ahead < last else last - 1])
        return found if self.symbols.endswith(tail[-self.far :], 0, found) else None


def _hash(symbols: str) -> int:
    """Return a number for some symbols: the one that `_hashes` gives them."""
    total = 0
    for symbol in symbols:
        total = (total + ord(symbol)) * _FACTOR & _MASK
        total ^= total >> 29
    return total


def _hashes(codes: npt.NDArray[np.uint32], size: int) -> npt.NDArray[np.uint64]:
    """Return a number for each run of `size` symbols."""
    num = max(len(codes) - size + 1, 0)
    total = np.zeros(num, dtype=np.uint64)
    for offset in range(size):
        total = (total + codes[offset : offset + num]) * np.uint64(_FACTOR)
        total ^= total >> np.uint64(29)
    return total
