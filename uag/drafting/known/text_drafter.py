"""Candidates from any function that continues a text: a retrieval index, a server, a template."""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from uag.adapters import TokenizerAdapter, from_tokenizer
from uag.drafting.drafter import Ask, Counts, Drafter
from uag.drafting.known.prediction import known_ids
from uag.errors import OptionError, PairError
from uag.proposal import Proposal

_CONFIDENCE = 0.9  # confidence in each candidate before the lookahead has learned how many are accepted
_NUM_LAST = 16  # last output ids that influence how an answer is encoded after them
_LONGEST_PAUSE = 64  # rounds without a call, at most, after a source returned nothing


@dataclass
class _Row:
    """One row: its text so far, its last ids, the rest of the source's last answer, and the rounds until the next."""

    text: bytes
    last_ids: list[int]
    answer: Sequence[int] = ()
    pause: int = 0
    last_pause: int = 0


class TextDrafter(Drafter):
    """Drafts the text that a function returns; pass it to `uag.Assistant(None, None, tokenizer, drafter=...)`.

    The function is called when its last answer is used up or the target has diverged from it. Calls take time, so the
    lookahead decides whether they pay, as for a draft model. After returning "", it is called again after 1, 2, 4, ...
    rounds.

    Args:
        source: takes the text so far, including the prompt, and returns a likely continuation, or "". Control tokens
            appear by name, except one at the start of the text. Its exceptions end the call.
        tokenizer: the target's tokenizer; None for the assistant's.
    """

    strategy = "text"

    def __init__(self, source: Callable[[str], str | None], tokenizer: Any = None) -> None:
        if not callable(source):
            raise OptionError(
                f"source={source!r} must be a function that takes the text so far and returns a continuation."
            )
        self._source = source
        self._tokenizer = tokenizer
        self._adapter: TokenizerAdapter | None = None  # set by `serving`, so that this object can be pickled
        self._rows: list[_Row] = []
        self._counts = Counts()

    @property
    def counts(self) -> Counts:
        return self._counts

    def serving(self, adapter: TokenizerAdapter | None) -> Self:
        """Return a copy for one assistant, whose tokenizer is the default; raise a `PairError` if none is known."""
        drafter = copy.copy(self)
        drafter._adapter = adapter if self._tokenizer is None else from_tokenizer(self._tokenizer)
        drafter._counts = Counts()
        if drafter._adapter is None:
            raise PairError(
                "TextDrafter needs the target's tokenizer: uag.Assistant(None, None, tokenizer, drafter=...)."
            )
        return drafter

    def start(self, prompts: Sequence[Sequence[int]], source_ids: Any = None) -> None:  # noqa: ARG002
        self._rows = [_Row(self._shown_prompt(prompt), list(prompt[-_NUM_LAST:])) for prompt in prompts]

    def _shown_prompt(self, ids: Sequence[int]) -> bytes:
        """Return the bytes of a prompt without the token or space that its tokenizer adds at the start."""
        adapter: Any = self._adapter
        is_start = ids and (ids[0] == adapter.controls.bos_id or (len(ids) == 1 and ids[0] in adapter.controls.content))
        return self._shown(ids[1:] if is_start else ids).removeprefix(adapter.start_prefix)

    def _shown(self, ids: Sequence[int]) -> bytes:
        adapter: Any = self._adapter
        names = adapter.controls.content
        return b"".join(adapter.join([i]) or names.get(i, "").encode() for i in ids)

    def propose(self, ask: Ask) -> list[list[Proposal]]:
        return [self._drafted(row, limit, ask) for row, limit in enumerate(ask.limits)]

    def _drafted(self, row: int, limit: int, ask: Ask) -> list[Proposal]:
        proposals: list[Proposal] = []
        for token_id in self._answer(self._rows[row])[:limit] if limit else ():
            proposals.append(Proposal(token_id, _CONFIDENCE))
            if token_id in ask.stop_ids or not ask.lookahead.go_on(row, proposals):
                break
        return proposals

    def _answer(self, row: _Row) -> Sequence[int]:
        """Return the rest of the last answer, or a new one if the output has left it or reached its end."""
        if row.answer or row.pause:
            row.pause = max(row.pause - 1, 0)
            return row.answer
        row.answer = self._new_answer(row)
        row.last_pause = row.pause = 0 if row.answer else min(2 * row.last_pause or 1, _LONGEST_PAUSE)
        return row.answer

    def _new_answer(self, row: _Row) -> Sequence[int]:
        """Call the source and return the ids of its answer; of a long one, those of its first piece."""
        try:
            text = row.text.decode()
        except UnicodeDecodeError:
            return ()  # an incomplete character, or bytes that are not text
        began = time.perf_counter()
        answer = self._source(text)
        self._counts.forward_s += time.perf_counter() - began
        self._counts.num_forwards += 1
        if not isinstance(answer, str | None):
            raise OptionError(f"The source of a TextDrafter returned {answer!r}. Return text, or '' for nothing.")
        return next(known_ids(answer or "", self._adapter, row.last_ids), ())

    def accept(self, row: int, num_accepted: int, output_ids: Sequence[int]) -> None:  # noqa: ARG002
        state = self._rows[row]
        has_followed = list(state.answer[: len(output_ids)]) == list(output_ids)
        state.answer = state.answer[len(output_ids) :] if has_followed else ()
        state.text += self._shown(output_ids)
        state.last_ids = [*state.last_ids, *output_ids][-_NUM_LAST:]

    def release(self) -> None:
        self._rows = []
