"""Candidates from anything that continues a text: a retrieval index, a server, a template."""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from uag.adapters import TokenizerAdapter, from_tokenizer
from uag.drafting.drafter import Ask, Counts, Drafter
from uag.drafting.ranked import choose, fit
from uag.drafting.texts.follower import Follower
from uag.drafting.texts.grounds import FOLLOWS, Ground, Learnt
from uag.drafting.texts.known_text import Known
from uag.drafting.texts.target_ids import Joined, Spelling
from uag.errors import OptionError, PairError
from uag.proposal import Proposal

_MOST_PROPOSED = 64
"""Candidates at most: more save passes where the source is right, and widen a pass that is rejected early."""

_LONGEST_PAUSE = 64
"""Rounds at most in which a source that has nothing to say is not asked: longer spares a slow one that times out, and
misses what it would say again."""

_RECENT = 16
"""Last ids of a row that are kept, for joins."""


@dataclass
class _Row:
    """One row: what was written, and what the source said last.

    Attributes:
        text: bytes so far, as the source is shown them.
        recent: the last ids.
        follower: where the output stands in the last answer; None where there is none.
        joined: that answer's ids.
        grounds: of the candidates that are offered.
        pause: rounds until the source is asked again; `longest` is how many the last pause had.
    """

    text: bytearray
    recent: list[int]
    follower: Follower | None = None
    joined: Joined | None = None
    grounds: list[Ground] = field(default_factory=list)
    pause: int = 0
    longest: int = 0

    @property
    def is_in_hand(self) -> bool:
        """Whether the last answer goes on behind what was written."""
        follower = self.follower
        return follower is not None and not follower.is_lost and follower.place < len(follower.known)


class TextDrafter(Drafter):
    """Drafts with what a source of text says; give it to `uag.Assistant(None, None, tokenizer, drafter=...)`.

    The source is asked when its last answer is used up or the target has left it. Asking takes time, so the lookahead
    decides whether it pays, as for a draft model. A source that returns "" is asked again after 1, 2, 4, ... rounds.

    Args:
        source: takes the text so far, prompt included, and returns how it may go on, or "". Control tokens stand in the
            text by their names; that which begins a text is left out. What it raises ends the call.
        tokenizer: the target's; None for the assistant's.
    """

    strategy = "text"

    def __init__(self, source: Callable[[str], str | None], tokenizer: Any = None) -> None:
        if not callable(source):
            raise OptionError(f"source={source!r} must be callable: it is shown a text and returns how it may go on.")
        self._continue = source
        self._tokenizer = tokenizer
        self._adapter: TokenizerAdapter | None = None if tokenizer is None else from_tokenizer(tokenizer)
        self._learnt = Learnt()
        self._rows: list[_Row] = []
        self._counts = Counts()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy or another process needs; the adapter is made again."""
        return vars(self) | {"_adapter": None, "_rows": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over such a state."""
        vars(self).update(state)
        self._adapter = None if self._tokenizer is None else from_tokenizer(self._tokenizer)

    @property
    def counts(self) -> Counts:
        """How often the source was asked, and the seconds that took."""
        return self._counts

    def serving(self, adapter: TokenizerAdapter | None) -> Self:
        """Return a drafter for one assistant, with its tokenizer where none was given: calls of several may overlap.

        Raises:
            PairError: neither is known.
        """
        own = copy.copy(self)
        own._adapter = self._adapter or adapter
        own._learnt, own._counts = copy.deepcopy(self._learnt), Counts()
        if own._adapter is None:
            raise PairError(
                "TextDrafter needs the target's tokenizer: uag.Assistant(None, None, tokenizer, drafter=...)."
            )
        return own

    def start(
        self,
        prompts: Sequence[Sequence[int]],
        source_ids: Sequence[Sequence[int]] | None = None,  # noqa: ARG002 - a source continues the decoder's text
    ) -> None:
        """Begin with new sequences."""
        texts = [bytearray(self._shown(prompt, at_start=True)) for prompt in prompts]
        self._rows = [_Row(text, list(prompt[-_RECENT:])) for text, prompt in zip(texts, prompts, strict=True)]

    def _shown(self, ids: Sequence[int], at_start: bool = False) -> bytes:
        """Return the bytes of ids as the source is shown them."""
        adapter: Any = self._adapter
        table, names = adapter.token_bytes, adapter.controls.content
        if at_start and ids and (ids[0] == adapter.controls.bos_id or len(ids) == 1):
            ids = [i for i in ids if i not in names] if len(ids) == 1 else ids[1:]  # also what a decoder starts with
        data = [(table[i] if 0 <= i < len(table) else None) or names.get(i, "").encode() for i in ids]
        text = b"".join(data)
        return text.removeprefix(adapter.start_prefix) if at_start else text

    def propose(self, ask: Ask) -> list[list[Proposal]]:
        """Return what is left of the last answers, or that of new ones; in a pause what is left, as much as pays."""
        if not ask.limit:
            found = [self._left(row, room, ask) for row, room in zip(self._rows, ask.rooms, strict=True)]
            fit(found, ask)
        else:
            found = [self._drafted(index, limit, ask) for index, limit in enumerate(ask.limits)]
        for row, line in zip(self._rows, found, strict=True):
            del row.grounds[len(line) :]
        return found

    def _left(self, row: _Row, room: int, ask: Ask) -> list[Proposal]:
        """Return candidates that cost nothing."""
        if not room or not row.is_in_hand:
            return []
        ids, row.grounds = self._ids(row, min(room, _MOST_PROPOSED))
        return choose(ids, list(map(self._learnt.rate, row.grounds)), self.source, ask)[0]

    def _drafted(self, index: int, limit: int, ask: Ask) -> list[Proposal]:
        """Return candidates as a draft model's: the rounds that need no answer share the cost of those that do."""
        row = self._rows[index]
        line: list[Proposal] = []
        if not limit or not (row.is_in_hand or self._is_answered(row)):
            return line
        ids, row.grounds = self._ids(row, limit)
        for token_id, ground in zip(ids, row.grounds, strict=True):
            line.append(Proposal(token_id, self._learnt.rate(ground)))
            if token_id in ask.stop_ids or not ask.lookahead.go_on(index, line):
                break
        return line

    def _ids(self, row: _Row, most: int) -> tuple[list[int], list[Ground]]:
        """Return the next ids of a row's answer, and what speaks for each."""
        follower, joined = row.follower, row.joined
        if follower is None or joined is None:
            return [], []
        ids = joined.ids(follower.place, row.recent, most)
        run, grain = follower.run, follower.known.grain
        return ids, [(FOLLOWS, follower.level(run + n * grain)) for n in range(len(ids))]

    def _is_answered(self, row: _Row) -> bool:
        """Whether the source has something to say; where it has not, it is left alone for a while."""
        if row.pause:
            row.pause -= 1
            return False
        is_answered = self._ask_source(row)
        row.longest = row.pause = 0 if is_answered else min(2 * row.longest or 1, _LONGEST_PAUSE)
        return is_answered

    def _ask_source(self, row: _Row) -> bool:
        """Ask the source how a row may go on; returns whether it has something to say.

        Raises:
            OptionError: it returns no text.
        """
        row.follower = row.joined = None
        try:
            text = row.text.decode()
        except UnicodeDecodeError:
            return False  # in the middle of a character, or bytes that are no text
        began = time.perf_counter()
        answer = self._continue(text)
        self._counts.forward_s += time.perf_counter() - began
        self._counts.num_forwards += 1
        if not isinstance(answer, str | None):
            raise OptionError(f"The source of a TextDrafter returned {type(answer).__name__}, and text is due.")
        spelling = Spelling(self._adapter)
        data = spelling.prepared(answer or "", spelling.place(row.recent))
        if not data:
            return False
        known = Known.of_bytes(data)
        row.follower, row.joined = Follower(known), Joined(known, spelling)
        return True

    def accept(self, row: int, num_accepted: int, output_ids: Sequence[int]) -> None:
        """Learn what the target wrote."""
        own = self._rows[row]
        for place, ground in enumerate(own.grounds[: num_accepted + 1]):
            self._learnt.learn(ground, place < num_accepted)
        own.grounds = []
        if own.follower is not None:
            own.follower.write(Spelling(self._adapter).symbols(output_ids))
        own.text += self._shown(output_ids)
        own.recent = [*own.recent, *output_ids][-_RECENT:]

    def release(self) -> None:
        """Forget every sequence."""
        self._rows = []
