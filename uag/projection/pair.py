"""A target's and a draft's tokenizer, and the first target token of a text."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Self

import numpy as np

from uag.adapters import TokenizerAdapter
from uag.errors import PairError
from uag.projection.tree import IntArray
from uag.projection.vocabulary import VocabularyMap, vocabulary_map

NO_TOKEN = -1
"""Placeholder for the first target token of a text that no target token begins."""

UNKNOWN = -2
"""Placeholder for the first target token of a draft token that has not been encoded yet."""

_MAX_REMEMBERED = 200_000
"""Number of texts whose first target token is cached. Increase to re-encode fewer texts; decrease to save memory."""


class FirstTokens:
    """The first target token of a text, or of each draft token, encoded on demand and cached.

    Encoding a vocabulary of 262,000 texts takes seconds, but a sequence needs only a few hundred of them. `of_text`
    returns the first target token of an isolated text, or `NO_TOKEN`.
    """

    def __init__(self, target: TokenizerAdapter, maps: VocabularyMap) -> None:
        self._target = target
        self._maps = maps
        self._firsts: IntArray = np.full(len(maps.draft_bytes), NO_TOKEN, dtype=np.int64)
        self._firsts[maps.draft_sorted.ids] = maps.draft_sorted.ids if maps.is_identity else UNKNOWN
        for draft_id, target_id in maps.control_to_target.items():
            self._firsts[draft_id] = target_id
        self.of_text = lru_cache(_MAX_REMEMBERED)(self._of_text)

    def __getitem__(self, draft_ids: int | IntArray) -> Any:
        """Return the first target token of an isolated draft token, or of each in an array."""
        firsts = self._firsts[draft_ids]
        if (firsts == UNKNOWN).any():
            ids = np.unique(draft_ids)
            unknown = ids[self._firsts[ids] == UNKNOWN].tolist()
            self._firsts[unknown] = [self._of_text(self._maps.draft_bytes[i] or b"") for i in unknown]
            firsts = self._firsts[draft_ids]
        return firsts

    def _of_text(self, text: bytes) -> int:
        """Return the first id if its bytes begin the text, else `NO_TOKEN`, because a lossy tokenizer changes text."""
        ids = self._target.encode_continuation(text)
        first = self._maps.target_bytes[ids[0]] if ids else None
        return ids[0] if first and text.startswith(first) else NO_TOKEN


@dataclass(frozen=True)
class TokenizerPair:
    """The adapters of a target's and a draft's tokenizer, and the byte-exact maps between them."""

    target: TokenizerAdapter
    draft: TokenizerAdapter
    maps: VocabularyMap

    @classmethod
    def of(cls, target: TokenizerAdapter, draft: TokenizerAdapter) -> Self:
        """Return the pair of two tokenizers.

        Raises:
            PairError: they share no bytes, so the draft could not propose any target token.
        """
        pair = cls(target, draft, vocabulary_map(target, draft))
        if not pair.maps.is_identity and not pair.has_reachable:
            raise PairError(
                f"The tokenizers {type(target.tokenizer).__name__!r} (target) and {type(draft.tokenizer).__name__!r} "
                "(draft) have no bytes in common: no token of the draft begins any text that the target can write. "
                "Use a draft whose tokenizer covers the target's text, or call generate without an assistant."
            )
        return pair

    @cached_property
    def first_target(self) -> FirstTokens:
        """The first target token of a text, or of each draft token."""
        return FirstTokens(self.target, self.maps)

    @property
    def has_reachable(self) -> bool:
        """Whether any draft token with text begins with a target token. Usually fast."""
        ids, size = self.maps.draft_sorted.ids, 64
        while ids.size:
            if (self.first_target[ids[:size]] != NO_TOKEN).any():
                return True
            ids, size = ids[size:], 2 * size
        return False
