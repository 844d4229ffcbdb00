"""Reads text as target tokens: the first token, and whether it is decided yet."""

from typing import NamedTuple

from uag.projection.pair import NO_TOKEN, TokenizerPair


class Continuation(NamedTuple):
    """A draft token whose target token is not known yet, with the text `over` after the committed text.

    `is_open` is whether a longer target token may cover this text, so that another draft pass is needed.
    """

    over: bytes
    is_open: bool


Reading = int | Continuation | None
"""A draft token in its context: the target token that it decides (or `NO_TOKEN`), a continuation, or None if the target
would not have ended a token there."""


class TargetReader:
    """Reads text as target tokens; `first_target` is the first target token of a text, or of each draft token."""

    def __init__(self, pair: TokenizerPair) -> None:
        self.maps, self.first_target = pair.maps, pair.first_target

    def read(self, draft_id: int, over: bytes, pending: bytes, last: bytes) -> Reading:
        """Read one draft token in its context.

        Args:
            draft_id: the draft token.
            over: text of the continuation so far, after the committed text.
            pending: committed text that the continuation does not cover yet. Exactly one of the two is empty: at a
                boundary that the tokenizers share, the maps have the answer.
            last: bytes of the last committed target token.
        """
        text = self.maps.draft_bytes[draft_id]
        if text is None:  # a control token ends the text, which decides its first token
            return self.first_target.of_text(over) if over else NO_TOKEN
        if pending:
            if len(text) <= len(pending):
                return Continuation(b"", is_open=True)
            over = text[len(pending) :]
            if not self.keeps_boundary(last, over):
                return None
        else:
            over += text
        return Continuation(over, is_open=self.maps.target_sorted.neighbors(over).longer is not None)

    def keeps_boundary(self, last: bytes, rest: bytes) -> bool:
        """Whether the target could have ended a token with `last` before writing `rest`."""
        if not last or not rest.strip():
            return True  # how whitespace is split depends on the text after it
        first = self.first_target.of_text(last + rest)
        return first == NO_TOKEN or self.maps.target_bytes[first] == last
