"""Whose context is whose row, and which rows lie in the draft's batch.

The engine says nothing but each request's ids so far: a row whose ids begin a context is that request's and carries on.
The rows of a round are the draft's batch. All others are parked: they keep a copy of their keys and values until their
request returns or room is needed. A new row starts with a copy of what it has in common with another one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from uag.drafting import Row, RowMaker, fit_context
from uag.hf.cache.caches import RowCache
from uag.lookahead import RowOutcome
from uag.proposal import Proposal
from uag.vllm.open_draft import OpenDraft
from uag.vllm.stats import ServingStats

IdArray = npt.NDArray[np.integer[Any]]

_MOST_NEW_IDS = 64
"""A request that grew by more since its last round begins anew, its text encoded as a prompt is: higher reads less
again, and keeps more tokens that the draft's tokenizer would cut otherwise."""

_LEAST_SHARED = 16
"""Draft tokens in common from which one row borrows from another: higher copies less often, and reads more again."""

_READ_ANEW = 8
"""Draft tokens at the end of a prompt that are never borrowed, since healing looks at their distributions: fewer would
leave it none, more are read for nothing."""

_TOKENS_PER_CANDIDATE = 4
"""Draft tokens that a candidate is taken to need when room is reckoned: higher leaves out rows that would have fit,
lower lets the cache outgrow its bound."""

_MAX_PARKED = 64
"""Parked rows at most: more keep the caches of requests that come back late, and take memory."""

_NOTHING = RowCache([], 0)


@dataclass(eq=False)
class Request:
    """One request's row.

    Attributes:
        row: the row.
        ids: target ids at its last round.
        saved: its keys and values where it is not in the batch.
        proposals: of its last round.
    """

    row: Row
    ids: IdArray
    saved: RowCache = _NOTHING
    proposals: list[Proposal] = field(default_factory=list)

    def begins(self, ids: IdArray, most_new: int = _MOST_NEW_IDS) -> bool:
        """Whether `ids` are this row's and at most `most_new` more."""
        size = self.ids.size
        if not size <= ids.size <= size + most_new or self.ids[-1] != ids[size - 1]:
            return False
        return bool((self.ids == ids[:size]).all())


@dataclass
class Requests:
    """Every row that is kept.

    Attributes:
        maker: makes rows.
        model: the draft.
        max_cached_tokens: slots of its cache, parked rows included.
        stats: filled in.
        active: by position in the engine's batch; their order is that of the draft's batch.
        parked: the one that was not asked for longest comes first.
    """

    maker: RowMaker
    model: OpenDraft
    max_cached_tokens: int
    stats: ServingStats
    active: dict[int, Request] = field(default_factory=dict)
    parked: list[Request] = field(default_factory=list)

    def clear(self) -> None:
        """Forget every row."""
        self.active, self.parked = {}, []
        self.model.start(())

    def known(self, asked: dict[int, IdArray], outcomes: list[RowOutcome]) -> dict[int, Request]:
        """Return, by position, the request that each context goes on from, brought up to date, where there is one.

        Args:
            asked: each context's ids by its position in the engine's batch.
            outcomes: what became of their last proposals, appended to.
        """
        last = {i: self.active[i] for i in asked if i in self.active}  # most requests stay where they were
        found = {i: request for i, request in last.items() if request.begins(asked[i], len(request.proposals) + 1)}
        taken = set(found.values())
        left = [request for request in (*self.active.values(), *self.parked) if request not in taken]
        left.sort(key=lambda request: -request.ids.size)
        for i, ids in asked.items():
            request = None if i in found else next((request for request in left if request.begins(ids)), None)
            if request is not None:
                left.remove(request)
                found[i] = request
        for i, request in found.items():
            new: list[int] = asked[i][request.ids.size :].tolist()
            num_accepted = _num_common([proposal.target_id for proposal in request.proposals], new)
            request.row.accept(num_accepted, new)
            fit_context(request.row, self.model.max_positions)
            if new:
                outcomes.append((request.proposals, num_accepted))
                self.stats.num_accepted_tokens += num_accepted
            request.ids, request.proposals = asked[i], []
        return found

    def begin(self, ids: IdArray) -> Request:
        """Make a request, with the beginning that it has in common with another one taken from there."""
        row = self.maker.make(ids.tolist())
        fit_context(row, self.model.max_positions)
        request = Request(row, ids)
        self.stats.num_begun += 1
        active = list(self.active.values())
        source = max((*active, *self.parked), key=lambda other: _num_common(ids, other.ids), default=None)
        if source is None:
            return request
        fed = [node.draft_id for node in source.row.path]
        num_shared = _num_common(fed, row.queued_ids()[:-_READ_ANEW])
        if num_shared >= _LEAST_SHARED:
            row.adopt(num_shared)
            held = active.index(source) if source in active else source.saved
            request.saved = self.model.save(held, num_shared)
            self.stats.num_shared_tokens += num_shared
        return request

    def take(self, found: dict[int, Request], limits: Sequence[int]) -> dict[int, Request]:
        """Make these requests the batch, without the longest where the cache has no room, and park the others.

        Args:
            found: requests by position.
            limits: candidates of each position.

        Returns:
            Those that fit, in the order of the draft's batch.
        """
        needs = {
            i: len(found[i].row.path) + found[i].row.num_to_feed() + _TOKENS_PER_CANDIDATE * limits[i]
            for i in sorted(found)
        }
        while needs and max(needs.values()) * len(needs) > self.max_cached_tokens:
            del needs[max(needs, key=lambda i: needs[i])]
            self.stats.num_left_out += 1
        self._arrange({i: found[i] for i in needs})
        room = self.max_cached_tokens - max(needs.values(), default=0) * len(needs)
        num_parked_tokens = sum(request.saved.length for request in self.parked)
        while self.parked and (num_parked_tokens > room or len(self.parked) > _MAX_PARKED):
            num_parked_tokens -= self.parked.pop(0).saved.length
            self.stats.num_evicted += 1
        return self.active

    def _arrange(self, active: dict[int, Request]) -> None:
        """Make these requests the draft's batch, and park those that leave it."""
        before, self.active = list(self.active.values()), active
        now = list(active.values())
        if now == before:
            self.model.compact()
            return
        places = {request: place for place, request in enumerate(before)}
        asked = set(now)
        num_parked = len(self.parked)
        self.parked = [request for request in self.parked if request not in asked]
        self.stats.num_resumed += num_parked - len(self.parked)
        for request, place in places.items():
            path = request.row.path
            if request in asked or not path:
                continue
            request.saved = self.model.save(place, len(path))
            for node in path:
                node.probs = None if node.probs is None else node.probs.copy()  # it was a view of the whole wave's
            self.parked.append(request)
            self.stats.num_parked += 1
        self.model.set_rows([(request.row, places.get(request, request.saved)) for request in now])
        for request in now:
            request.saved = _NOTHING


def _num_common(first: Sequence[int] | IdArray, second: Sequence[int] | IdArray) -> int:
    """Count the ids that two sequences begin with in common."""
    size = min(len(first), len(second))
    differ = np.flatnonzero(np.asarray(first[:size]) != np.asarray(second[:size]))
    return int(differ[0]) if differ.size else size
