"""Whose context is whose row: the engine says nothing but each request's ids so far.

A request is known again by those: the draft's row whose ids begin them carries on. A new request borrows the draft's
cache of another one that begins alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from uag.drafting import Row, RowMaker, fit_context
from uag.hf.caches import RowCache
from uag.proposal import Proposal
from uag.vllm.open_draft import OpenDraft
from uag.vllm.stats import ServingStats

IdArray = npt.NDArray[np.integer[Any]]

_MOST_NEW_IDS = 64
"""A request that grew by more since its last round begins anew: its text is then encoded as a prompt is."""

_LEAST_SHARED = 16
"""Draft tokens that two requests must begin with in common for one to borrow the other's cache."""

_READ_ANEW = 8
"""Draft tokens at the end of a prompt that are never borrowed: healing looks at their distributions."""


@dataclass(eq=False)
class Request:
    """One request's row.

    Attributes:
        row: the row.
        ids: target ids at its last round.
        place: its place in the batch, None where it is parked or new.
        cache: what was saved of it, None in the batch.
        proposals: of its last round.
        last_round: number of that round.
    """

    row: Row
    ids: IdArray
    place: int | None = None
    cache: RowCache | None = None
    proposals: list[Proposal] = field(default_factory=list)
    last_round: int = 0

    def begins(self, ids: IdArray) -> bool:
        """Whether `ids` go on from this row's."""
        size = self.ids.size
        return size <= ids.size and self.ids[-1] == ids[size - 1] and bool((self.ids == ids[:size]).all())

    def update(self, ids: IdArray, max_positions: int) -> tuple[list[Proposal], int] | None:
        """Tell the row what the target wrote since its last round; returns its proposals and how many were accepted.

        None where the target wrote nothing.
        """
        new: list[int] = ids[self.ids.size :].tolist()
        proposals, self.proposals = self.proposals, []
        num_accepted = 0
        for proposal, written in zip(proposals, new, strict=False):
            if proposal.target_id != written:
                break
            num_accepted += 1
        self.row.accept(num_accepted, new)
        self.ids = ids
        fit_context(self.row, max_positions)
        return (proposals, num_accepted) if new else None


class Requests:
    """Finds the row of each context, or makes one.

    Args:
        maker: makes rows.
        model: the draft.
        stats: filled in.
    """

    def __init__(self, maker: RowMaker, model: OpenDraft, stats: ServingStats) -> None:
        self._maker = maker
        self._model = model
        self._stats = stats

    def known(
        self, asked: dict[int, IdArray], requests: Iterable[Request], by_position: dict[int, Request]
    ) -> dict[int, Request]:
        """Return, by position, the request that each context goes on from, where there is one.

        Args:
            asked: each context's ids by its position in the engine's batch.
            requests: all that there are.
            by_position: those of the last round.
        """
        left = {id(request): request for request in requests}
        found: dict[int, Request] = {}
        for i, ids in asked.items():  # most requests stay where they were
            request = by_position.get(i)
            if request is None or id(request) not in left or ids.size > request.ids.size + len(request.proposals) + 1:
                continue
            if request.begins(ids):
                found[i] = left.pop(id(request))
        longest_first = sorted(left.values(), key=lambda request: -request.ids.size)
        for i, ids in asked.items():
            if i not in found:
                request = next((r for r in longest_first if r.begins(ids)), None)
                if request is not None:
                    longest_first.remove(request)
                    found[i] = request
        return {i: request for i, request in found.items() if asked[i].size - request.ids.size <= _MOST_NEW_IDS}

    def begin(self, ids: IdArray, requests: Iterable[Request]) -> Request:
        """Make a request, with the beginning that it has in common with another one taken from there."""
        row = self._maker.make(ids.tolist())
        fit_context(row, self._model.max_positions)
        request = Request(row, ids)
        self._stats.num_begun += 1
        sources = [(_num_common(ids, other.ids), other) for other in requests]
        common, source = max(sources, key=lambda pair: pair[0], default=(0, None))
        if source is None or common < _LEAST_SHARED:
            return request
        fed = [node.draft_id for node in source.row.path]
        queued = row.queued_ids()[:-_READ_ANEW]
        size = min(len(fed), len(queued))
        shared = _num_common(np.array(fed[:size]), np.array(queued[:size]))
        if shared >= _LEAST_SHARED:
            row.adopt(shared)
            if source.cache is not None:
                request.cache = source.cache.cut(shared)
            elif source.place is not None:
                request.cache = self._model.save(source.place, shared)
            self._stats.num_shared_tokens += shared
        return request


def _num_common(first: IdArray, second: IdArray) -> int:
    """Count the ids that two sequences begin with in common."""
    size = min(first.size, second.size)
    differ = np.flatnonzero(first[:size] != second[:size])
    return int(differ[0]) if differ.size else size
