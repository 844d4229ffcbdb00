"""Candidates from anything that continues a text: a retrieval index, a server, a template."""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from uag.adapters import TokenizerAdapter, from_tokenizer
from uag.drafting.drafter import Ask, Counts, Drafter
from uag.drafting.texts.follower import NUM_WRITTEN, Follower
from uag.drafting.texts.known_text import KnownText
from uag.errors import OptionError, PairError
from uag.proposal import Proposal

_CONFIDENCE = 0.9
"""Confidence in each candidate before the lookahead has learned how many are accepted. Increase to draft more
aggressively at first; decrease to reduce wasted candidates."""

_LONGEST_PAUSE = 64
"""Rounds at most in which a source that returned nothing is not called. Increase to spare a slow source that times
out; decrease to hear sooner from one that has something again."""


@dataclass
class _Row:
    """One row.

    Attributes:
        text: bytes so far, as the source is shown them.
        last_ids: prompt and output, the last ones.
        answer: the source's last one; None where there is none.
        pause: rounds until the source is called again.
        last_pause: how many rounds the last pause had.
    """

    text: bytes
    last_ids: list[int]
    answer: Follower | None = None
    pause: int = 0
    last_pause: int = 0


class TextDrafter(Drafter):
    """Drafts with what a source of text returns; give it to `uag.Assistant(None, None, tokenizer, drafter=...)`.

    The source is called when its last answer is used up or the target has left it. Calling it takes time, so the
    lookahead decides whether it pays, as for a draft model. A source that returns "" is called again after 1, 2, 4, ...
    rounds.

    Args:
        source: takes the text so far, prompt included, and returns how it may continue, or "". Control tokens are shown
            by their names, without the one that begins a text. What it raises ends the call.
        tokenizer: the target's; None for the assistant's.
    """

    strategy = "text"

    def __init__(self, source: Callable[[str], str | None], tokenizer: Any = None) -> None:
        if not callable(source):
            raise OptionError(
                f"source={source!r} must be a function that takes the text so far and returns how it may continue."
            )
        self._source = source
        self._tokenizer = tokenizer
        self._adapter: TokenizerAdapter | None = None  # set by `serving`, so that this object can be pickled
        self._rows: list[_Row] = []
        self._counts = Counts()

    @property
    def counts(self) -> Counts:
        """How often the source was called, and the seconds that took."""
        return self._counts

    def serving(self, adapter: TokenizerAdapter | None) -> Self:
        """Return a drafter for one assistant, with its tokenizer where none was given: calls of several may overlap.

        Raises:
            PairError: neither is known.
        """
        drafter = copy.copy(self)
        drafter._adapter = adapter if self._tokenizer is None else from_tokenizer(self._tokenizer)
        drafter._counts = Counts()
        if drafter._adapter is None:
            raise PairError(
                "TextDrafter needs the target's tokenizer: uag.Assistant(None, None, tokenizer, drafter=...)."
            )
        return drafter

    def start(
        self,
        prompts: Sequence[Sequence[int]],
        source_ids: Sequence[Sequence[int]] | None = None,  # noqa: ARG002 - a source continues the decoder's text
    ) -> None:
        """Begin with new sequences."""
        self._rows = [_Row(self._shown_prompt(prompt), list(prompt[-NUM_WRITTEN:])) for prompt in prompts]

    def _shown_prompt(self, ids: Sequence[int]) -> bytes:
        """Return the bytes of a prompt without the token, or the space, that its tokenizer puts at the start."""
        adapter: Any = self._adapter
        is_start = ids and (ids[0] == adapter.controls.bos_id or (len(ids) == 1 and ids[0] in adapter.controls.content))
        return self._shown(ids[1:] if is_start else ids).removeprefix(adapter.start_prefix)

    def _shown(self, ids: Sequence[int]) -> bytes:
        adapter: Any = self._adapter
        names = adapter.controls.content
        return b"".join(adapter.join([i]) or names.get(i, "").encode() for i in ids)

    def propose(self, ask: Ask) -> list[list[Proposal]]:
        """Return candidates from the last answers, or from new ones."""
        return [self._drafted(row, limit, ask) for row, limit in enumerate(ask.limits)]

    def _drafted(self, row: int, limit: int, ask: Ask) -> list[Proposal]:
        proposals: list[Proposal] = []
        answer = self._answer(self._rows[row]) if limit else None
        if answer is None:
            return proposals
        (guess,) = answer.guesses()
        for token_id in answer.continuation(guess, limit)[0]:
            proposals.append(Proposal(token_id, _CONFIDENCE))
            if token_id in ask.stop_ids or not ask.lookahead.go_on(row, proposals):
                break
        return proposals

    def _answer(self, row: _Row) -> Follower | None:
        """Return the last answer if the output still follows it, else a new one; None if there is none."""
        if row.answer is not None and row.answer.has_more:
            return row.answer
        row.answer = None
        if row.pause:
            row.pause -= 1
            return None
        row.answer = self._new_answer(row)
        row.last_pause = row.pause = 0 if row.answer else min(2 * row.last_pause or 1, _LONGEST_PAUSE)
        return row.answer

    def _new_answer(self, row: _Row) -> Follower | None:
        """Call the source; None if it returns nothing.

        Raises:
            OptionError: it returns something other than text.
        """
        adapter: Any = self._adapter
        try:
            text = row.text.decode()
        except UnicodeDecodeError:
            return None  # in the middle of a character, or bytes that are no text
        began = time.perf_counter()
        answer = self._source(text)
        self._counts.forward_s += time.perf_counter() - began
        self._counts.num_forwards += 1
        if not isinstance(answer, str | None):
            raise OptionError(f"The source of a TextDrafter returned {answer!r}. Return text, or '' for nothing.")
        known = KnownText.of_text(answer or "", adapter, row.last_ids)
        return Follower(known, row.last_ids) if len(known) else None

    def accept(self, row: int, num_accepted: int, output_ids: Sequence[int]) -> None:  # noqa: ARG002
        """Move along what the target wrote."""
        state = self._rows[row]
        if state.answer is not None:
            state.answer.write(output_ids)
        state.text += self._shown(output_ids)
        state.last_ids = [*state.last_ids, *output_ids][-NUM_WRITTEN:]

    def release(self) -> None:
        """Forget every sequence."""
        self._rows = []
