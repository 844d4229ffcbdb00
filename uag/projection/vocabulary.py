"""Byte-exact maps between a target vocabulary and a draft vocabulary.

Two vocabularies meet in bytes, never in vocabulary strings: `Ġone` and `▁one` are both `b" one"`. A `VocabularyMap`
holds what can be worked out once per pair, as arrays and bytes. Neither it nor the cache of maps keeps a tokenizer
alive.
"""

import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from uag.adapters import TokenizerAdapter, map_controls
from uag.projection.first_tokens import NO_TOKEN, UNKNOWN, FirstTokens
from uag.projection.tree import IntArray

_MAX_CACHED_MAPS = 8

_MAX_AROUND = 100_000
"""Texts of which is remembered what stands around them: more look up less, and take memory."""


class Around(NamedTuple):
    """What stands around a text in a vocabulary.

    Attributes:
        starts: the tokens that the text begins with or is.
        longer: the half-open range of positions of those that begin with the text and go on; None without any.
    """

    starts: tuple[int, ...]
    longer: tuple[int, int] | None


class SortedBytes:
    """The byte strings of a vocabulary in byte order, so that a byte prefix is a range.

    Args:
        token_bytes: the bytes of each id; None and empty strings take no part.

    Attributes:
        around: returns what stands around a text; remembered, since running text repeats itself.

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
        self.around = lru_cache(_MAX_AROUND)(self._find_around)

    def prefix_range(self, prefix: bytes) -> tuple[int, int]:
        """Return the half-open range of positions whose text begins with `prefix`."""
        low = bisect_left(self.texts, prefix)
        stem = prefix.rstrip(b"\xff")
        if not stem:
            return low, len(self.texts)
        return low, bisect_left(self.texts, stem[:-1] + bytes([stem[-1] + 1]), low)

    def exact_range(self, text: bytes) -> tuple[int, int]:
        """Return the half-open range of positions whose text is `text`: two ids may have equal bytes."""
        low = bisect_left(self.texts, text)
        return low, bisect_right(self.texts, text, low)

    def _find_around(self, text: bytes) -> Around:
        low, high = self.exact_range(text)[1], self.prefix_range(text)[1]
        return Around(self.starts(text), (low, high) if low < high else None)

    def starts(self, text: bytes, known: Sequence[int] = (), num_known: int = 0) -> tuple[int, ...]:
        """Return the tokens that `text` begins with or is, the shortest first.

        Args:
            text: the text.
            known: what this returns for its first `num_known` bytes, which some token goes on behind.
            num_known: so many.
        """
        found, low, texts = list(known), 0, self.texts
        for length in range(num_known + 1, len(text) + 1):
            start = text[:length]
            low = bisect_left(texts, start, low)
            if low == len(texts) or not texts[low].startswith(start):
                break  # no token goes on so
            while low < len(texts) and texts[low] == start:
                found.append(self.ids.item(low))
                low += 1
        return tuple(found)

    def has_longer(self, text: bytes) -> bool:
        """Say whether some token begins with `text` and goes on."""
        after = bisect_right(self.texts, text)
        return after < len(self.texts) and self.texts[after].startswith(text)


@dataclass(frozen=True)
class VocabularyMap:
    """What a target and a draft vocabulary have to say to each other.

    Attributes:
        is_identity: the two tokenizers are the same one; ids can be taken over as they are.
        target_bytes: [target_vocab_size], bytes of each target id, None for control tokens.
        draft_bytes: [draft_vocab_size], the same for the draft.
        target_sorted: the target's texts in byte order.
        draft_sorted: the draft's texts in byte order.
        first_target: [draft_vocab_size] int64, the first target token of each draft token taken alone, or `NO_TOKEN`:
            worked out as it is asked for, while an adapter of the target lives.
        is_closed: [draft_vocab_size] bool, no target token begins with the draft token's text and goes on, so that
            `first_target` is decided whatever follows.
        control_to_draft: target control id -> the draft ids that stand for it (empty: leave it out).
        control_to_target: draft control id -> the target control id with the same role.
        num_one_to_one: draft tokens whose bytes are also those of one target token.
    """

    is_identity: bool
    target_bytes: tuple[bytes | None, ...]
    draft_bytes: tuple[bytes | None, ...]
    target_sorted: SortedBytes
    draft_sorted: SortedBytes
    first_target: FirstTokens
    is_closed: npt.NDArray[np.bool_]
    control_to_draft: dict[int, tuple[int, ...]]
    control_to_target: dict[int, int]
    num_one_to_one: int

    @property
    def num_draft_texts(self) -> int:
        """Draft tokens that carry text at all."""
        return len(self.draft_sorted.texts)

    @property
    def num_reachable(self) -> int:
        """Draft tokens with text that the target can begin to write; control tokens are not counted."""
        return int((self.first_target[self.draft_sorted.ids] >= 0).sum())

    @property
    def has_reachable(self) -> bool:
        """Whether there is any such token; they are not counted, which takes seconds."""
        ids, size = self.draft_sorted.ids, 64
        while ids.size:
            if (self.first_target[ids[:size]] >= 0).any():
                return True
            ids, size = ids[size:], 2 * size
        return False


_cache: OrderedDict[tuple[str, str], VocabularyMap] = OrderedDict()

_cache_lock = threading.Lock()


def vocabulary_map(target: TokenizerAdapter, draft: TokenizerAdapter) -> VocabularyMap:
    """Return the map of a pair, built at the first call and kept for a few pairs.

    The key is what the tokenizers do (their fingerprints), so two loads of one tokenizer share a map.
    """
    key = (target.fingerprint, draft.fingerprint)
    with _cache_lock:
        if key in _cache:
            _cache.move_to_end(key)
            _cache[key].first_target.encode_with(target)
            return _cache[key]
    built = build_vocabulary_map(target, draft)
    with _cache_lock:
        _cache[key] = built
        while len(_cache) > _MAX_CACHED_MAPS:
            _cache.popitem(last=False)
    return built


def build_vocabulary_map(target: TokenizerAdapter, draft: TokenizerAdapter) -> VocabularyMap:
    """Work out the map of a pair; half a second for 260,000 x 50,000 entries."""
    is_identity = target.fingerprint == draft.fingerprint
    target_bytes, draft_bytes = target.token_bytes, draft.token_bytes
    target_sorted, draft_sorted = SortedBytes(target_bytes), SortedBytes(draft_bytes)
    if is_identity:
        ids = np.arange(len(draft_bytes), dtype=np.int64)
        first_target = FirstTokens(ids, draft_bytes, target_bytes)
        is_closed = np.ones(len(draft_bytes), dtype=np.bool_)
        controls = sorted(target.controls.control_ids)
        return VocabularyMap(
            is_identity, target_bytes, draft_bytes, target_sorted, draft_sorted, first_target, is_closed,
            {i: (i,) for i in controls}, {i: i for i in controls}, draft_sorted.ids.size,
        )  # fmt: skip

    # Beside each draft text: the last target text that is not greater, and the one behind it.
    behind = _places(target_sorted.texts, draft_sorted.texts)
    around = [b"", *target_sorted.texts, b""]
    texts = draft_sorted.texts
    is_closed = np.ones(len(draft_bytes), dtype=np.bool_)
    is_closed[draft_sorted.ids] = [not around[at + 1].startswith(text) for at, text in zip(behind, texts, strict=True)]
    num_one_to_one = sum([around[at] == text for at, text in zip(behind, texts, strict=True)])

    control_to_draft = {i: tuple(ids) for i, ids in map_controls(target, draft).items()}
    control_to_target = _single_controls(map_controls(draft, target), target.controls.control_ids)
    known = np.full(len(draft_bytes), NO_TOKEN, dtype=np.int64)
    known[draft_sorted.ids] = UNKNOWN
    for draft_id, target_id in control_to_target.items():
        known[draft_id] = target_id
    first_target = FirstTokens(known, draft_bytes, target_bytes)
    first_target.encode_with(target)
    return VocabularyMap(
        is_identity, target_bytes, draft_bytes, target_sorted, draft_sorted, first_target, is_closed,
        control_to_draft, control_to_target, num_one_to_one,
    )  # fmt: skip


def _places(ordered: list[bytes], texts: list[bytes]) -> list[int]:
    """Return for each of `texts`, in order too, how many of `ordered` are not greater (`bisect_right`)."""
    both = ordered + texts
    merged = np.array(sorted(range(len(both)), key=both.__getitem__), dtype=np.int64)  # sorts two runs: it merges them
    is_text = merged >= len(ordered)
    places: list[int] = np.cumsum(~is_text)[is_text].tolist()
    return places


def _single_controls(mapping: dict[int, tuple[int, ...]], control_ids: Iterable[int]) -> dict[int, int]:
    allowed = set(control_ids)
    return {source: ids[0] for source, ids in mapping.items() if len(ids) == 1 and ids[0] in allowed}
