"""Match the engine's requests with rows of the draft, and keep a round's rows in the draft's batch.

The engine passes only the ids of each request. A context that begins with a row's ids belongs to that row's request.
The rows of a round share a book (`uag.hf.cache.book`). All others are parked, each in a book of its own, until their
request returns or the cache is full. A new row copies the prefix that it shares with another row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from uag.drafting import Row, RowMaker, TorchPasses, fit_context
from uag.hf.cache.book import Book
from uag.lookahead import RowOutcome
from uag.proposal import Proposal, num_equal

IdArray = npt.NDArray[np.integer[Any]]

_MAX_NEW_IDS = 64
"""A request that grew by more ids since its last round starts over, with its text encoded as a prompt. Increase to
re-read fewer tokens; decrease to keep fewer tokens that the draft's tokenizer would split differently."""

_NUM_LAST = 8
"""Draft tokens at the end of a prompt that are read in the batch, because healing uses their distributions. All before
them are read alone, since all other rows would be padded to their length, or copied from a row that shares them.
Increase if healing steps back further; decrease to read less."""

_TOKENS_PER_CANDIDATE = 4
"""Draft tokens that a candidate is assumed to need. Increase to stay within `max_cached_tokens` more strictly; decrease
to draft for more rows."""


@dataclass
class ServingStats:
    """Statistics since the start, over all requests.

    Attributes:
        num_rounds: calls that drafted.
        num_paused_rounds: calls that drafted nothing because it would not have paid.
        num_candidate_tokens: candidates proposed.
        num_accepted_tokens: candidates that the target accepted, as seen in the next contexts.
        num_begun: rows created.
        num_shared_tokens: draft tokens whose cache new rows copied from another row instead of reading them.
        num_evicted: parked rows that were dropped to free cache slots.
        num_left_out: rows that were not drafted for because the cache was too small.
        num_draft_forwards: draft passes.
        draft_s: seconds spent, projection included.
        failures: number of calls that raised an error, by the error's class; each proposed nothing.
    """

    num_rounds: int = 0
    num_paused_rounds: int = 0
    num_candidate_tokens: int = 0
    num_accepted_tokens: int = 0
    num_begun: int = 0
    num_shared_tokens: int = 0
    num_evicted: int = 0
    num_left_out: int = 0
    num_draft_forwards: int = 0
    draft_s: float = 0.0
    failures: dict[str, int] = field(default_factory=dict)


@dataclass(eq=False)
class Request:
    """One request's row.

    Attributes:
        row: its state in the draft.
        ids: its target ids in its last round.
        book: where the keys and values of its path are: the batch, a book of its own, or another request's until the
            next batch is made.
        place: its row there.
        proposals: its proposals in its last round.
    """

    row: Row
    ids: IdArray
    book: Book
    place: int
    proposals: list[Proposal] = field(default_factory=list)

    def is_prefix_of(self, ids: IdArray, max_new: int = _MAX_NEW_IDS) -> bool:
        """Whether `ids` are this request's ids followed by at most `max_new` more."""
        size = self.ids.size
        can_be = size <= ids.size <= size + max_new and self.ids[-1] == ids[size - 1]  # cheap, for hundreds
        return bool(can_be and (self.ids == ids[:size]).all())


@dataclass
class RequestPool:
    """The requests whose rows are kept.

    Attributes:
        maker: creates rows.
        passes: of the draft.
        max_cached_tokens: slots of the draft's cache, including parked rows.
        stats: updated in place.
        active: the rows in the draft's batch, in order, by position in the engine's batch.
        parked: the rows outside it, least recently used first.
    """

    maker: RowMaker
    passes: TorchPasses
    max_cached_tokens: int
    stats: ServingStats
    active: dict[int, Request] = field(default_factory=dict)
    parked: list[Request] = field(default_factory=list)

    def clear(self) -> None:
        """Drop every row."""
        self.active, self.parked = {}, []
        self.passes.start(())

    def find(self, contexts: dict[int, IdArray], outcomes: list[RowOutcome]) -> dict[int, Request]:
        """Return the known request of each context that continues one, by position, updated to the context's ids.

        `outcomes` receives the outcome of each request's last proposals.
        """
        known: dict[int, Request] = {}
        for i, ids in contexts.items():  # most requests keep their position
            request = self.active.get(i)
            if request is not None and request.is_prefix_of(ids, len(request.proposals) + 1):
                known[i] = request
        taken = set(known.values())
        others = [request for request in (*self.active.values(), *self.parked) if request not in taken]
        others.sort(key=lambda request: -request.ids.size)
        for i, ids in contexts.items():
            if i not in known and (request := next((other for other in others if other.is_prefix_of(ids)), None)):
                others.remove(request)
                known[i] = request
        for i, request in known.items():
            new: list[int] = contexts[i][request.ids.size :].tolist()
            num_accepted = num_equal((proposal.target_id for proposal in request.proposals), new)
            request.row.accept(num_accepted, new)
            fit_context(request.row, self.passes.max_positions)
            if new:
                outcomes.append((request.proposals, num_accepted))
                self.stats.num_accepted_tokens += num_accepted
            request.ids, request.proposals = contexts[i], []
        return known

    def begin(self, ids: IdArray) -> Request:
        """Create a request, whose row starts with the prefix that it shares with another one."""
        row = self.maker.make(ids.tolist())
        fit_context(row, self.passes.max_positions)
        self.stats.num_begun += 1
        others = (*self.active.values(), *self.parked)
        source = max(others, key=lambda other: _num_common(ids, other.ids), default=None)
        if source is None:
            return Request(row, ids, self._batch, 0)  # no token is copied from there
        num_shared = _num_common([node.draft_id for node in source.row.path], row.queued_ids()[:-_NUM_LAST])
        row.adopt(num_shared)
        self.stats.num_shared_tokens += num_shared
        return Request(row, ids, source.book, source.place)

    @property
    def _batch(self) -> Book:
        return self.passes.books[0]

    def _read(self, request: Request) -> None:
        """Read what is queued for a row, except the last tokens, alone in a book of its own."""
        row, num_fed = request.row, len(request.row.path)
        num_new = len(row.queued_ids()) - _NUM_LAST
        if num_new > _NUM_LAST:
            request.book, request.place = request.book.select([(request.book, request.place, num_fed)]), 0
            row.adopt(num_new)
            with self.passes.counted(reads_prompt=True):
                self.passes.run(request.book, {0: row.path[num_fed:]})

    def activate(self, requests: dict[int, Request], limits: Sequence[int]) -> dict[int, Request]:
        """Make these requests the draft's batch, dropping the longest if the cache is too small, and park all others.

        `requests` and `limits` go by position in the engine's batch. Returns the requests that fit, in the order of the
        draft's batch.
        """
        needs = {
            i: len(requests[i].row.path) + requests[i].row.num_to_feed() + _TOKENS_PER_CANDIDATE * limits[i]
            for i in sorted(requests)
        }
        while needs and max(needs.values()) * len(needs) > self.max_cached_tokens:
            del needs[max(needs, key=lambda i: needs[i])]
            self.stats.num_left_out += 1
        self._set_batch({i: requests[i] for i in needs})
        num_free = self.max_cached_tokens - max(needs.values(), default=0) * len(needs)
        num_parked_tokens = sum(request.book.num_slots for request in self.parked)
        while self.parked and num_parked_tokens > num_free:
            num_parked_tokens -= self.parked.pop(0).book.num_slots
            self.stats.num_evicted += 1
        return self.active

    def _set_batch(self, active: dict[int, Request]) -> None:
        before, self.active = list(self.active.values()), active
        now, batch = list(active.values()), self._batch
        for request in now:
            self._read(request)
        if now == before and all(request.book is batch for request in now):
            return
        leaving = [request for request in before if request not in now and request.row.path]
        for request in leaving:
            request.book, request.place = batch.select([(batch, request.place, len(request.row.path))]), 0
            for node in request.row.path:
                node.probs = None if node.probs is None else node.probs.copy()  # a view would keep the whole batch's
        self.parked = [request for request in self.parked if request not in now] + leaving
        batch = batch.select([(request.book, request.place, len(request.row.path)) for request in now])
        for place, request in enumerate(now):
            request.book, request.place = batch, place
        self.passes.rows, self.passes.books = [request.row for request in now], [batch]


def _num_common(first: Sequence[int] | IdArray, second: Sequence[int] | IdArray) -> int:
    """Count the ids in the common prefix of two sequences."""
    size = min(len(first), len(second))
    differ = np.flatnonzero(np.asarray(first[:size]) != np.asarray(second[:size]))
    return int(differ[0]) if differ.size else size
