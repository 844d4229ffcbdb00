"""What lies in the draft's cache: the rows of this round, and parked ones.

Rows of requests that are not asked for are parked, keys and values with them, until the request returns, another
request with the same beginning borrows them, or room is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from uag.vllm.open_draft import OpenDraft
from uag.vllm.requests import Request
from uag.vllm.stats import ServingStats

_TOKENS_PER_CANDIDATE = 4
"""Draft tokens that a candidate is taken to need when room is reckoned: higher leaves out rows that would have fit."""

_MAX_PARKED = 64
"""Parked rows at most: more keep the caches of requests that come back late, and take memory."""


class Batch:
    """The draft's rows.

    Args:
        model: the draft.
        max_cached_tokens: slots of its cache, parked rows included.
        stats: filled in.
    """

    def __init__(self, model: OpenDraft, max_cached_tokens: int, stats: ServingStats) -> None:
        self._model = model
        self._max_cached_tokens = max_cached_tokens
        self._stats = stats
        self._active: list[Request] = []
        self._parked: list[Request] = []

    def __iter__(self) -> Iterator[Request]:
        return iter((*self._active, *self._parked))

    def clear(self) -> None:
        """Forget every row."""
        self._active, self._parked = [], []
        self._model.start(())

    def take(self, found: dict[int, Request], limits: Sequence[int]) -> dict[int, Request]:
        """Make the batch these requests', and return those that fit; the others' rows are parked.

        Args:
            found: requests by position.
            limits: candidates of each position.
        """
        fitting, num_slots = self._fitting(found, limits)
        self._arrange(list(fitting.values()))
        self._evict(self._max_cached_tokens - num_slots)
        return fitting

    def _fitting(self, found: dict[int, Request], limits: Sequence[int]) -> tuple[dict[int, Request], int]:
        """Leave out the longest rows until the batch keeps within the bound; returns the others and their slots."""
        needs = {
            i: len(request.row.path) + request.row.num_to_feed() + _TOKENS_PER_CANDIDATE * limits[i]
            for i, request in found.items()
        }
        while needs and max(needs.values()) * len(needs) > self._max_cached_tokens:
            del needs[max(needs, key=lambda i: needs[i])]
            self._stats.num_left_out += 1
        return {i: found[i] for i in needs}, max(needs.values(), default=0) * len(needs)

    def _arrange(self, active: Sequence[Request]) -> None:
        wanted = {id(request) for request in active}
        leaving = [request for request in self._active if id(request) not in wanted]
        staying = [request for request in self._active if id(request) in wanted]
        coming = [request for request in active if request.place is None]
        if not (leaving or coming):
            self._model.compact()
            return
        returning = [request for request in coming if request in self._parked]
        self._stats.num_resumed += len(returning)
        self._parked = [request for request in self._parked if request not in returning]
        for request in leaving:
            self._park(request)
        self._active = staying + coming
        self._model.set_rows([(r.row, r.cache if r.place is None else r.place) for r in self._active])
        for place, request in enumerate(self._active):
            request.place, request.cache = place, None

    def _park(self, request: Request) -> None:
        """Take a row out of the batch with its cache."""
        place, request.place = request.place, None
        path = request.row.path
        if place is None or not path:
            return
        request.cache = self._model.save(place, len(path))
        for node in reversed(path):
            if node.probs is None:
                break
            node.probs = node.probs.copy()  # it was a view of the whole wave's
        self._parked.append(request)
        self._stats.num_parked += 1

    def _evict(self, room: int) -> None:
        """Drop the parked rows that were not asked for longest, until the rest has at most `room` tokens."""
        self._parked.sort(key=lambda request: request.last_round)
        tokens = sum(request.cache.length for request in self._parked if request.cache is not None)
        while self._parked and (tokens > room or len(self._parked) > _MAX_PARKED):
            cache = self._parked.pop(0).cache
            tokens -= 0 if cache is None else cache.length
            self._stats.num_evicted += 1
