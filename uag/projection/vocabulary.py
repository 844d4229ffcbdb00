"""Byte-exact maps between a target vocabulary and a draft vocabulary: `Ġone` and `▁one` are both `b" one"`."""

import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from uag.adapters import TokenizerAdapter, map_controls
from uag.projection.tree import IntArray

_MAX_REMEMBERED = 100_000  # number of texts whose neighbors are cached


class Neighbors(NamedTuple):
    """The tokens that begin a text, the shortest first, and the range of the longer ones that it begins, or None."""

    starts: tuple[int, ...]
    longer: tuple[int, int] | None


class SortedBytes:
    """The byte strings of a vocabulary in byte order, so that a byte prefix is a range; ids without bytes are skipped.

    >>> vocabulary = SortedBytes([b"a", b"ab", None, b"b"])
    >>> vocabulary.prefix_range(b"a")
    (0, 2)
    >>> vocabulary.has_longer(b"a"), vocabulary.has_longer(b"ab")
    (True, False)
    """

    def __init__(self, token_bytes: Sequence[bytes | None]) -> None:
        texts = [text or b"" for text in token_bytes]
        ids = sorted((token_id for token_id, text in enumerate(texts) if text), key=texts.__getitem__)
        self.texts: list[bytes] = [texts[token_id] for token_id in ids]
        self.ids: IntArray = np.array(ids, dtype=np.int64)
        self.max_length: int = max(map(len, self.texts), default=0)
        self.neighbors = lru_cache(_MAX_REMEMBERED)(copy(self)._find_neighbors)  # of a copy, which makes no cycle

    def prefix_range(self, prefix: bytes) -> tuple[int, int]:
        low = bisect_left(self.texts, prefix)
        stem = prefix.rstrip(b"\xff")
        if not stem:
            return low, len(self.texts)
        return low, bisect_left(self.texts, stem[:-1] + bytes([stem[-1] + 1]), low)

    def exact_range(self, text: bytes) -> tuple[int, int]:
        """Return the half-open range of positions whose text is `text`; several ids may have the same bytes."""
        low = bisect_left(self.texts, text)
        return low, bisect_right(self.texts, text, low)

    def _find_neighbors(self, text: bytes) -> Neighbors:
        low, high = self.exact_range(text)[1], self.prefix_range(text)[1]
        return Neighbors(self.starts(text), (low, high) if low < high else None)

    def starts(self, text: bytes) -> tuple[int, ...]:
        """Return the tokens that are prefixes of `text` or equal to it, the shortest first."""
        ids: list[int] = []
        low, texts = 0, self.texts
        for length in range(1, len(text) + 1):
            start = text[:length]
            low = bisect_left(texts, start, low)
            if low == len(texts) or not texts[low].startswith(start):
                break  # no longer token begins with this
            while low < len(texts) and texts[low] == start:
                ids.append(self.ids.item(low))
                low += 1
        return tuple(ids)

    def has_longer(self, text: bytes) -> bool:
        after = bisect_right(self.texts, text)
        return after < len(self.texts) and self.texts[after].startswith(text)


@dataclass(frozen=True)
class VocabularyMap:
    """The byte-exact maps between a target and a draft vocabulary, without references to the tokenizers.

    Attributes:
        is_identity: whether the two tokenizers are the same, so that ids need no translation.
        target_bytes, draft_bytes: bytes of each id, None for control tokens.
        target_sorted, draft_sorted: these texts in byte order.
        is_closed: [draft_vocab_size] bool, whether no longer target token begins with the draft token's text, so that
            it decides the first target token of any text that it begins.
        control_to_draft: maps a target control id to the draft ids with the same meaning, which may be empty.
        control_to_target: maps a draft control id to the target control id with the same role.
    """

    is_identity: bool
    target_bytes: tuple[bytes | None, ...]
    draft_bytes: tuple[bytes | None, ...]
    target_sorted: SortedBytes
    draft_sorted: SortedBytes
    is_closed: npt.NDArray[np.bool_]
    control_to_draft: dict[int, tuple[int, ...]]
    control_to_target: dict[int, int]


_maps: weakref.WeakValueDictionary[tuple[str, str], VocabularyMap] = weakref.WeakValueDictionary()


def vocabulary_map(target: TokenizerAdapter, draft: TokenizerAdapter) -> VocabularyMap:
    """Return the map of a pair, shared by all tokenizers with the same fingerprints while it is in use.

    The first time, this takes half a second for 260,000 x 50,000 entries.
    """
    key = (target.fingerprint, draft.fingerprint)
    if (known := _maps.get(key)) is not None:
        return known
    is_identity = target.fingerprint == draft.fingerprint
    target_bytes, draft_bytes, control_ids = target.token_bytes, draft.token_bytes, target.controls.control_ids
    target_sorted, draft_sorted = SortedBytes(target_bytes), SortedBytes(draft_bytes)
    is_closed = np.ones(len(draft_bytes), dtype=np.bool_)
    if is_identity:
        control_to_draft: dict[int, tuple[int, ...]] = {i: (i,) for i in control_ids}
        control_to_target = {i: i for i in control_ids}
    else:
        is_closed[draft_sorted.ids] = [not target_sorted.has_longer(text) for text in draft_sorted.texts]
        control_to_draft, to_target = map_controls(target, draft), map_controls(draft, target)
        control_to_target = {i: ids[0] for i, ids in to_target.items() if len(ids) == 1 and ids[0] in control_ids}
    maps = _maps[key] = VocabularyMap(
        is_identity, target_bytes, draft_bytes, target_sorted, draft_sorted, is_closed,
        control_to_draft, control_to_target,
    )  # fmt: skip
    return maps
