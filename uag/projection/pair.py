"""A target's and a draft's tokenizer, and the draft's text read as target tokens."""

from copy import copy
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Self

import numpy as np

from uag.adapters import TokenizerAdapter
from uag.errors import PairError
from uag.projection.tree import IntArray
from uag.projection.vocabulary import VocabularyMap, vocabulary_map

NO_TOKEN = -1  # placeholder for the first target token of a text that no target token begins
UNKNOWN = -2  # placeholder for the first target token of a draft token that has not been encoded yet
_MAX_REMEMBERED = 200_000  # number of texts whose first target token is cached


Reading = int | bytes | None
"""A draft token in its context: the target token that it decides (or `NO_TOKEN`), the text after the committed one that
a longer target token may cover, or None if the target would not have ended a token there."""


class TargetReader:
    """Reads text as target tokens, encoded on demand and cached.

    Encoding a vocabulary of 262,000 texts takes seconds, but a sequence needs only a few hundred of them. `of_text`
    returns the first target token of an isolated text, or `NO_TOKEN`.
    """

    def __init__(self, target: TokenizerAdapter, maps: VocabularyMap) -> None:
        self.maps = maps
        self._target = target
        self._firsts: IntArray = np.full(len(maps.draft_bytes), NO_TOKEN, dtype=np.int64)
        self._firsts[maps.draft_sorted.ids] = maps.draft_sorted.ids if maps.is_identity else UNKNOWN
        for draft_id, target_id in maps.control_to_target.items():
            self._firsts[draft_id] = target_id
        self.of_text = lru_cache(_MAX_REMEMBERED)(copy(self)._of_text)  # of a copy, since a cycle would keep the maps

    def __getitem__(self, draft_ids: int | IntArray) -> Any:
        """Return the first target token of an isolated draft token, or of each in an array."""
        firsts = self._firsts[draft_ids]
        if (firsts == UNKNOWN).any():
            ids = np.unique(draft_ids)
            unknown = ids[self._firsts[ids] == UNKNOWN].tolist()
            self._firsts[unknown] = [self._of_text(self.maps.draft_bytes[i] or b"") for i in unknown]
            firsts = self._firsts[draft_ids]
        return firsts

    def _of_text(self, text: bytes) -> int:
        """Return the first id if its bytes begin the text, else `NO_TOKEN`, because a lossy tokenizer changes text."""
        ids = self._target.encode_continuation(text)
        first = self.maps.target_bytes[ids[0]] if ids else None
        return ids[0] if first and text.startswith(first) else NO_TOKEN

    def read(self, draft_id: int, over: bytes, pending: bytes, last: bytes) -> Reading:
        """Read one draft token in its context.

        `over` is the text of the continuation so far, after the committed text, and `pending` committed text that it
        does not cover yet; exactly one of the two is empty. `last` are the bytes of the last committed target token.
        """
        text = self.maps.draft_bytes[draft_id]
        if text is None:  # a control token ends the text, which decides its first token
            return self.of_text(over) if over else NO_TOKEN
        if pending:
            if len(text) <= len(pending):
                return b""
            over = text[len(pending) :]
            if not self.keeps_boundary(last, over):
                return None
        else:
            over += text
        return over if self.maps.target_sorted.neighbors(over).longer else self.of_text(over)

    def keeps_boundary(self, last: bytes, rest: bytes) -> bool:
        """Whether the target could have ended a token with `last` before writing `rest`."""
        if not last or not rest.strip():
            return True  # how whitespace is split depends on the text after it
        first = self.of_text(last + rest)
        return first == NO_TOKEN or self.maps.target_bytes[first] == last


@dataclass(frozen=True)
class TokenizerPair:
    """The adapters of a target's and a draft's tokenizer, and the byte-exact maps between them."""

    target: TokenizerAdapter
    draft: TokenizerAdapter
    maps: VocabularyMap

    @classmethod
    def of(cls, target: TokenizerAdapter, draft: TokenizerAdapter) -> Self:
        """Return the pair of two tokenizers; raise a `PairError` if the draft could not propose any target token."""
        pair = cls(target, draft, vocabulary_map(target, draft))
        if not pair.maps.is_identity and all(pair.first_target[i] == NO_TOKEN for i in pair.maps.draft_sorted.ids):
            raise PairError(
                f"The tokenizers {type(target.tokenizer).__name__!r} (target) and {type(draft.tokenizer).__name__!r} "
                "(draft) have no bytes in common: no token of the draft begins any text that the target can write. "
                "Use a draft whose tokenizer covers the target's text, or call generate without an assistant."
            )
        return pair

    @cached_property
    def first_target(self) -> TargetReader:
        return TargetReader(self.target, self.maps)
