"""The first target token of each draft token, encoded when it is first read."""

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from uag.adapters import TokenizerAdapter
from uag.projection.tree import IntArray

NO_TOKEN = -1
"""Stands where no target token can start the text."""

UNKNOWN = -2
"""Stands where the text has not been encoded yet."""


class FirstTokens:
    """[draft_vocab_size] int64: the first target token of each draft token taken alone, or `NO_TOKEN`.

    Encoding a vocabulary of 262,000 texts takes seconds and a sequence needs a few hundred of them, so an entry is
    encoded when it is first read. Adapters are held weakly: a cached map keeps no tokenizer alive.

    Args:
        firsts: [draft_vocab_size], the entries that are known, and `UNKNOWN`.
        texts: [draft_vocab_size], bytes of each draft id, None for those without text.
        target_bytes: [target_vocab_size], the same for the target.
    """

    def __init__(self, firsts: IntArray, texts: Sequence[bytes | None], target_bytes: Sequence[bytes | None]) -> None:
        self._firsts = firsts
        self._texts = texts
        self._target_bytes = target_bytes
        self._targets: weakref.WeakSet[TokenizerAdapter] = weakref.WeakSet()

    def encode_with(self, target: TokenizerAdapter) -> None:
        """Also use this adapter of the target's tokenizer, for as long as it lives."""
        self._targets.add(target)

    def __getitem__(self, draft_ids: int | IntArray) -> Any:
        """Return the first target token of a draft token, or of each in an array."""
        firsts = self._firsts[draft_ids]
        if (firsts == UNKNOWN).any():
            ids = np.unique(draft_ids)
            self._encode(ids[self._firsts[ids] == UNKNOWN].tolist())
            firsts = self._firsts[draft_ids]
        return firsts

    def _encode(self, draft_ids: list[int]) -> None:
        target = next(iter(self._targets), None)
        if target is None:
            raise RuntimeError("the adapter of the target's tokenizer is gone: keep it as long as the map is in use")
        texts = [self._texts[i] or b"" for i in draft_ids]
        rows = target.encode_continuations(texts)
        self._firsts[draft_ids] = [first_matching(self._target_bytes, *pair) for pair in zip(rows, texts, strict=True)]


def first_matching(target_bytes: Sequence[bytes | None], ids: Sequence[int], text: bytes) -> int:
    """Return the first of `ids` if its bytes really begin `text`, else `NO_TOKEN`: a lossy tokenizer changes text."""
    if not ids:
        return NO_TOKEN
    first = target_bytes[ids[0]]
    return ids[0] if first and text.startswith(first) else NO_TOKEN
