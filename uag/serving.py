"""Drafting for a serving engine: requests that come, move, pause, share prompts and go.

The engine says nothing but each request's ids so far. A request is known again by those: the draft's row whose ids
begin them carries on. Rows of requests that are not asked for are parked, keys and values with them, until the request
returns, another request with the same beginning borrows them, or room is needed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from uag.adapters import TokenizerAdapter
from uag.costs import MAX_CANDIDATES
from uag.law import ProposalLaw
from uag.lookahead import Calibration
from uag.open_draft import OpenDraft, RowCache
from uag.pace import Pace
from uag.rows import Row
from uag.tree import Proposal
from uag.waves import RowMaker, draft_steps, fit_context, pair_maps, run_waves

IdArray = npt.NDArray[np.integer[Any]]

_NO_ID = (1 << 31) - 1
"""Stands for ids below zero, which no vocabulary has."""

_MOST_NEW_IDS = 64
"""A request that grew by more since its last round begins anew: its text is then encoded as a prompt is."""

_LEAST_SHARED = 16
"""Draft tokens that two requests must begin with in common for one to borrow the other's cache."""

_READ_ANEW = 8
"""Draft tokens at the end of a prompt that are never borrowed: healing looks at their distributions."""

_TOKENS_PER_CANDIDATE = 4
"""Draft tokens that a candidate is taken to need, about, when room is reckoned."""

_MAX_PARKED = 64


@dataclass
class ServingStats:
    """What was drafted so far, over all requests.

    Attributes:
        num_rounds: calls with something to draft.
        num_row_rounds: rows drafted for, summed over rounds.
        num_candidate_tokens: candidates proposed.
        num_accepted_tokens: those found again in what the target wrote.
        num_begun: rows begun.
        num_shared_tokens: draft tokens that new rows borrowed instead of reading them.
        num_parked: rows that left the batch with their cache.
        num_resumed: rows that came back with it.
        num_evicted: parked rows that were dropped to make room.
        num_left_out: rows not drafted for, because their cache would not fit.
        num_paused_rounds: calls with something to draft that drafted nothing, because it would not have paid.
        num_draft_forwards: draft passes.
        draft_s: seconds spent, projection included.
        failures: calls that ended in an error, by what it was; each proposed nothing.
    """

    num_rounds: int = 0
    num_row_rounds: int = 0
    num_candidate_tokens: int = 0
    num_accepted_tokens: int = 0
    num_begun: int = 0
    num_shared_tokens: int = 0
    num_parked: int = 0
    num_resumed: int = 0
    num_evicted: int = 0
    num_left_out: int = 0
    num_paused_rounds: int = 0
    num_draft_forwards: int = 0
    draft_s: float = 0.0
    failures: dict[str, int] = field(default_factory=dict)

    @property
    def acceptance_rate(self) -> float:
        """Accepted / proposed candidates; 0 where there were none."""
        return self.num_accepted_tokens / self.num_candidate_tokens if self.num_candidate_tokens else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Output tokens per round and row: 1 + accepted / rounds."""
        return 1.0 + self.num_accepted_tokens / self.num_row_rounds if self.num_row_rounds else 0.0


@dataclass(eq=False)
class _Request:
    """One request's row.

    Attributes:
        row: the row.
        ids: target ids at its last round.
        place: its place in the batch, None where it is parked or new.
        cache: what was saved of it, None in the batch.
        proposals: of its last round.
        reach: probability that all of them are accepted.
        last_round: number of that round.
    """

    row: Row
    ids: IdArray
    place: int | None = None
    cache: RowCache | None = None
    proposals: list[Proposal] = field(default_factory=list)
    reach: float = 1.0
    last_round: int = 0

    def begins(self, ids: IdArray) -> bool:
        """Whether `ids` go on from this row's."""
        size = self.ids.size
        return size <= ids.size and self.ids[-1] == ids[size - 1] and bool((self.ids == ids[:size]).all())


class RequestDrafter:
    """Drafts for whatever requests an engine runs at the moment.

    Args:
        model: the draft model.
        target: adapter of the target's tokenizer.
        draft: adapter of the draft's tokenizer.
        vocab_size: entries of the target's head: no id at or above it is proposed.
        min_confidence: a row is drafted further while the probability that all its candidates are accepted, as
            calibrated on what was accepted so far, is at least this. 0 always drafts to the limit. None goes by what
            was measured: the time between two calls is the engine's step, and as much is drafted as makes most output
            tokens per second, nothing where that is nothing.
        most_candidates: of a request that the engine takes at most.
        max_cached_tokens: slots of the draft's cache, parked rows included.
        max_branches: see `Projection`.
        heal: see `Projection`.

    Raises:
        PairError: the draft's text can never become target tokens.
        UnsupportedError: the draft cannot draft.
    """

    def __init__(
        self,
        model: Any,
        target: TokenizerAdapter,
        draft: TokenizerAdapter,
        *,
        vocab_size: int,
        min_confidence: float | None = 0.0,
        most_candidates: int = MAX_CANDIDATES,
        max_cached_tokens: int = 131_072,
        max_branches: int = 1,
        heal: bool = True,
    ) -> None:
        maps = pair_maps(target, draft)
        self.model = OpenDraft(model, len(maps.draft_bytes))
        self.vocab_size = vocab_size
        self.max_cached_tokens = max_cached_tokens
        self.stats = ServingStats()
        self.min_confidence = min_confidence or 0.0
        self.pace = Pace(most_candidates) if min_confidence is None else None
        self.calibration = Calibration()
        self._maker = RowMaker(model, maps, target, draft, max_branches=max_branches, heal=heal)
        self.strategy = self._maker.strategy
        eos_id = target.controls.eos_id
        self._stop_ids = frozenset(() if eos_id is None else (eos_id,))
        self._batch: list[_Request] = []
        self._parked: list[_Request] = []
        self._by_position: dict[int, _Request] = {}

    def reset(self) -> None:
        """Forget every request; what was learnt and counted stays."""
        self._batch, self._parked, self._by_position = [], [], {}
        self.model.start(())
        if self.pace is not None:
            self.pace.interrupt()

    def propose(self, contexts: Sequence[IdArray], limits: Sequence[int]) -> list[list[Proposal]]:
        """Draft one round.

        Args:
            contexts: each request's target ids so far, prompt and output, in any order.
            limits: candidates that each can take; 0 leaves its row alone.

        Returns:
            At most `limits[i]` proposals for request i.
        """
        began = time.perf_counter()
        proposals: list[list[Proposal]] = [[] for _ in contexts]
        asked = {i: np.where(contexts[i] < 0, _NO_ID, contexts[i]) for i, n in enumerate(limits) if n > 0}
        asked = {i: ids for i, ids in asked.items() if ids.size}
        if not asked:
            if self.pace is not None:
                self.pace.interrupt()
            return proposals
        sizes = [ids.size for ids in contexts] if len(asked) == len(contexts) else []
        num_begun = self.stats.num_begun
        found = None
        if self.pace is not None:
            if self.pace.has_drafted:
                found = self._known(asked)  # tells what became of the last candidates
            limit = self.pace.plan(sizes, len(asked), began)
            limits = [min(limit, n) for n in limits]
            self.stats.num_paused_rounds += not limit
        if any(limits):
            found = self._known(asked) if found is None else found
            for i, ids in asked.items():
                if i not in found:
                    found[i] = self._begin(ids)
            self._draft(found, limits, proposals)
        ended = time.perf_counter()
        self.stats.draft_s += ended - began
        if self.pace is not None:
            lengths = [len(proposals[i]) for i in asked]
            self.pace.end(sizes, lengths, ended - began, ended, self.stats.num_begun > num_begun)
        return proposals

    def _draft(self, found: dict[int, _Request], limits: Sequence[int], proposals: list[list[Proposal]]) -> None:
        """Draft for the requests found, into `proposals`."""
        self.stats.num_rounds += 1
        active, num_slots = self._fitting({i: found[i] for i in sorted(found)}, limits)
        self._arrange(list(active.values()))
        self._evict(self.max_cached_tokens - num_slots)
        steps = {}
        for i, request in active.items():
            request.proposals, request.reach, request.last_round = proposals[i], 1.0, self.stats.num_rounds
            place = request.place
            if place is not None:
                goes_on = partial(self._goes_on, i, request)
                steps[place] = draft_steps(request.row, limits[i], proposals[i], self._law, goes_on, self._stop_ids)
        run_waves(self.model, steps)
        self._by_position = active
        self.stats.num_row_rounds += len(active)
        self.stats.num_candidate_tokens += sum(map(len, proposals))
        self.stats.num_draft_forwards = self.model.num_forwards

    def _law(self, _position: int) -> ProposalLaw:
        return ProposalLaw(self.vocab_size)

    def _goes_on(self, position: int, request: _Request, proposals: Sequence[Proposal]) -> bool:
        if self.pace is not None:
            return self.pace.lookahead.go_on(position, proposals)
        request.reach *= self.calibration.rate(proposals[-1].confidence)
        return request.reach >= self.min_confidence

    # ------------------------------------------------------------------ whose context is whose row

    def _known(self, asked: dict[int, IdArray]) -> dict[int, _Request]:
        """Return the row of each context that has one, brought up to date."""
        known = {id(request): request for request in (*self._batch, *self._parked)}
        found: dict[int, _Request] = {}
        for i, ids in asked.items():  # most requests stay where they were
            request = self._by_position.get(i)
            if request is None or id(request) not in known or ids.size > request.ids.size + len(request.proposals) + 1:
                continue
            if request.begins(ids):
                found[i] = known.pop(id(request))
        longest_first = sorted(known.values(), key=lambda request: -request.ids.size)
        for i, ids in asked.items():
            if i in found:
                continue
            request = next((r for r in longest_first if r.begins(ids)), None)
            if request is not None:
                longest_first.remove(request)
                found[i] = request
        for i, request in list(found.items()):
            if asked[i].size - request.ids.size > _MOST_NEW_IDS:
                del found[i]
            else:
                self._update(request, asked[i])
        return found

    def _update(self, request: _Request, ids: IdArray) -> None:
        """Tell a row what the target wrote since its last round."""
        new: list[int] = ids[request.ids.size :].tolist()
        num_accepted = 0
        for proposal, written in zip(request.proposals, new, strict=False):
            if proposal.target_id != written:
                break
            num_accepted += 1
        if new and self.pace is not None:
            self.pace.outcomes.append((request.proposals, num_accepted))
        elif new:
            self.calibration.learn_row(request.proposals, num_accepted)
        self.stats.num_accepted_tokens += num_accepted
        request.proposals = []
        request.row.accept(num_accepted, new)
        request.ids = ids
        fit_context(request.row, self.model.max_positions)

    def _begin(self, ids: IdArray) -> _Request:
        """Make a row, with the beginning that it has in common with another one taken from there."""
        row = self._maker.make(ids.tolist())
        fit_context(row, self.model.max_positions)
        request = _Request(row, ids)
        self.stats.num_begun += 1
        sources = [(_num_common(ids, other.ids), other) for other in (*self._batch, *self._parked)]
        common, source = max(sources, key=lambda pair: pair[0], default=(0, None))
        if source is not None and common >= _LEAST_SHARED:
            fed = [node.draft_id for node in source.row.path]
            queued = row.queued_ids()[:-_READ_ANEW]
            size = min(len(fed), len(queued))
            shared = _num_common(np.array(fed[:size]), np.array(queued[:size]))
            if shared >= _LEAST_SHARED:
                row.adopt(shared)
                if source.cache is not None:
                    request.cache = source.cache.cut(shared)
                elif source.place is not None:
                    request.cache = self.model.save(source.place, shared)
                self.stats.num_shared_tokens += shared
        return request

    # ------------------------------------------------------------------ the batch

    def _fitting(self, found: dict[int, _Request], limits: Sequence[int]) -> tuple[dict[int, _Request], int]:
        """Leave out the longest rows until the batch keeps within the bound; returns the others and their slots."""
        needs = {
            i: len(request.row.path) + request.row.num_to_feed() + _TOKENS_PER_CANDIDATE * limits[i]
            for i, request in found.items()
        }
        while needs and max(needs.values()) * len(needs) > self.max_cached_tokens:
            del needs[max(needs, key=lambda i: needs[i])]
            self.stats.num_left_out += 1
        return {i: found[i] for i in needs}, max(needs.values(), default=0) * len(needs)

    def _arrange(self, active: Sequence[_Request]) -> None:
        """Make the batch these requests': the others are parked."""
        wanted = {id(request) for request in active}
        leaving = [request for request in self._batch if id(request) not in wanted]
        staying = [request for request in self._batch if id(request) in wanted]
        coming = [request for request in active if request.place is None]
        if leaving or coming:
            returning = [request for request in coming if request in self._parked]
            self.stats.num_resumed += len(returning)
            self._parked = [request for request in self._parked if request not in returning]
            for request in leaving:
                self._park(request)
            batch = staying + coming
            self.model.set_rows([(r.row, r.cache if r.place is None else r.place) for r in batch])
            for place, request in enumerate(batch):
                request.place, request.cache = place, None
            self._batch = batch
        else:
            self.model.compact()

    def _park(self, request: _Request) -> None:
        """Take a row out of the batch with its cache."""
        place, request.place = request.place, None
        path = request.row.path
        if place is None or not path:
            return
        request.cache = self.model.save(place, len(path))
        for node in reversed(path):
            if node.probs is None:
                break
            node.probs = node.probs.copy()  # it was a view of the whole wave's
        self._parked.append(request)
        self.stats.num_parked += 1

    def _evict(self, room: int) -> None:
        """Drop the parked rows that were not asked for longest, until the rest has at most `room` tokens."""
        self._parked.sort(key=lambda request: request.last_round)
        tokens = sum(request.cache.length for request in self._parked if request.cache is not None)
        while self._parked and (tokens > room or len(self._parked) > _MAX_PARKED):
            cache = self._parked.pop(0).cache
            tokens -= 0 if cache is None else cache.length
            self.stats.num_evicted += 1


def _num_common(first: IdArray, second: IdArray) -> int:
    """Count the ids that two sequences begin with in common."""
    size = min(first.size, second.size)
    differ = np.flatnonzero(first[:size] != second[:size])
    return int(differ[0]) if differ.size else size
