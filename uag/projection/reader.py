"""Text, read as the target would write it: its first token, and whether that is decided yet."""

from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from uag.projection.first_tokens import NO_TOKEN, first_matching
from uag.projection.pair import TokenizerPair
from uag.projection.tree import IntArray

MAX_REMEMBERED = 200_000
"""Texts whose first target token is remembered. More texts encode less and take more memory."""

_MAX_PLACES = 1_000
"""Places of a text whose next draft tokens are remembered: more read less, and take memory."""


class Closed(NamedTuple):
    """A draft token that decides a target token, before an encoding has told which.

    Attributes:
        over: text behind the committed text.
        starts: target tokens that it may be, by their bytes, the longest last.
    """

    over: bytes
    starts: tuple[int, ...]


Reading = int | Closed | bytes | None
"""A draft token at a place: the target token that is decided by it (or `NO_TOKEN`), the text behind the committed text
where none is decided yet, or None where the target would not have ended a token there."""


class TargetReader:
    """Reads text as target tokens; answers are remembered, since running text repeats itself.

    Args:
        pair: the tokenizers.

    Attributes:
        settle: returns the first target token of a text taken alone.
    """

    def __init__(self, pair: TokenizerPair) -> None:
        self.maps = pair.maps
        self.target = pair.target
        self.settle = lru_cache(MAX_REMEMBERED)(partial(_first_token, pair))
        self._closed_before: dict[int, IntArray] = {}
        self._children = lru_cache(_MAX_PLACES)(_nothing_known)

    def children(self, over: bytes, pending: bytes, last: bytes) -> dict[int, Reading]:
        """Return what is known of the draft tokens at a place, by id; `read` finds out what is not.

        Args:
            over: text of the continuation so far behind the committed text.
            pending: committed text that the continuation does not cover yet; one of the two is empty, both are at a
                boundary that the tokenizers share.
            last: the target token that the committed text ends with; where nothing is pending it does not count.
        """
        return self._children(over, pending, last if pending else b"")

    def read(self, draft_id: int, over: bytes, pending: bytes, last: bytes) -> Reading:
        """Read one draft token at a place; the arguments are those of `children`."""
        text = self.maps.draft_bytes[draft_id]
        if not over and not pending:  # a boundary that both tokenizers share: the maps answer
            if self.maps.is_closed[draft_id]:
                return int(self.maps.first_target[draft_id])
            return text or b""
        if text is None:
            return self.settle(over) if over else NO_TOKEN  # a control token ends the text: what is there is decided
        if pending:
            if len(text) <= len(pending):
                return b""
            over = text[len(pending) :]
            if not self.keeps_boundary(last, over):
                return None
        else:
            over += text
        texts = self.maps.target_sorted
        if texts.has_longer(over):
            return over
        # Longer tokens begin with the text so far, or the continuation would be closed.
        before = over[: len(over) - len(text)] if not pending else b""
        return Closed(over, texts.starts(over, texts.around(before).starts if before else (), len(before)))

    def classify(self, text: bytes) -> tuple[int, bool]:
        """Return the first target token of `text` and whether it is decided whatever follows.

        The token of open text is `NO_TOKEN`: it costs an encoding and is rarely asked for (see `settle`).
        """
        is_open = self.maps.target_sorted.has_longer(text)
        return (NO_TOKEN, False) if is_open else (self.settle(text), True)

    def closed_before(self, target_id: int) -> IntArray:
        """Return the draft tokens whose first target token is `target_id`, whatever follows them."""
        known = self._closed_before.get(target_id)
        if known is None:
            known = self._find_closed_before(target_id)
            self._closed_before[target_id] = known
        return known

    def _find_closed_before(self, target_id: int) -> IntArray:
        maps = self.maps
        if maps.is_identity:
            return np.array([target_id], dtype=np.int64)
        controls = [draft_id for draft_id, control in maps.control_to_target.items() if control == target_id]
        text = maps.target_bytes[target_id]
        low, high = maps.draft_sorted.prefix_range(text) if text else (0, 0)
        ids = maps.draft_sorted.ids[low:high]
        ids = ids[maps.is_closed[ids]]
        found = ids[maps.first_target[ids] == target_id].tolist()
        return np.array(sorted(found + controls), dtype=np.int64)

    def keeps_boundary(self, last: bytes, rest: bytes) -> bool:
        """Say whether the target can have ended a token at the boundary, had it been about to write `rest`."""
        if not last or not rest.strip():
            return True  # white space alone decides nothing: where it is split depends on what follows it
        first = self.settle(last + rest)
        return first == NO_TOKEN or self.maps.target_bytes[first] == last


def _first_token(pair: TokenizerPair, text: bytes) -> int:
    return first_matching(pair.maps.target_bytes, pair.target.encode_continuation(text), text)


def _nothing_known(over: bytes, pending: bytes, last: bytes) -> dict[int, Reading]:  # noqa: ARG001 - the cache's key
    return {}
