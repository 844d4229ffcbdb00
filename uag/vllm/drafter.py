"""Drafting for a serving engine: requests that come, move, pause, share prompts and go.

The engine says nothing but each request's ids so far. A request is known again by those: the draft's row whose ids
begin them carries on. Rows of requests that are not asked for are parked, keys and values with them, until the request
returns, another request with the same beginning borrows them, or room is needed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from uag.adapters import TokenizerAdapter
from uag.drafting.rows import RowMaker, fit_context, pair_maps
from uag.drafting.waves import draft_steps, run_waves
from uag.lookahead.calibration import Calibration
from uag.lookahead.costs import MAX_CANDIDATES
from uag.projection.scoring import ProposalLaw
from uag.proposal import Proposal
from uag.vllm.open_draft import OpenDraft
from uag.vllm.pace import Pace
from uag.vllm.requests import NO_ID, IdArray, RequestRow, num_common
from uag.vllm.stats import ServingStats

_MOST_NEW_IDS = 64
"""A request that grew by more since its last round begins anew: its text is then encoded as a prompt is."""

_LEAST_SHARED = 16
"""Draft tokens that two requests must begin with in common for one to borrow the other's cache."""

_READ_ANEW = 8
"""Draft tokens at the end of a prompt that are never borrowed: healing looks at their distributions."""

_TOKENS_PER_CANDIDATE = 4
"""Draft tokens that a candidate is taken to need, about, when room is reckoned."""

_MAX_PARKED = 64


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
        self._batch: list[RequestRow] = []
        self._parked: list[RequestRow] = []
        self._by_position: dict[int, RequestRow] = {}

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
        asked = {i: np.where(contexts[i] < 0, NO_ID, contexts[i]) for i, n in enumerate(limits) if n > 0}
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

    def _draft(self, found: dict[int, RequestRow], limits: Sequence[int], proposals: list[list[Proposal]]) -> None:
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

    def _goes_on(self, position: int, request: RequestRow, proposals: Sequence[Proposal]) -> bool:
        if self.pace is not None:
            return self.pace.lookahead.go_on(position, proposals)
        request.reach *= self.calibration.rate(proposals[-1].confidence)
        return request.reach >= self.min_confidence

    # ------------------------------------------------------------------ whose context is whose row

    def _known(self, asked: dict[int, IdArray]) -> dict[int, RequestRow]:
        """Return the row of each context that has one, brought up to date."""
        known = {id(request): request for request in (*self._batch, *self._parked)}
        found: dict[int, RequestRow] = {}
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

    def _update(self, request: RequestRow, ids: IdArray) -> None:
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

    def _begin(self, ids: IdArray) -> RequestRow:
        """Make a row, with the beginning that it has in common with another one taken from there."""
        row = self._maker.make(ids.tolist())
        fit_context(row, self.model.max_positions)
        request = RequestRow(row, ids)
        self.stats.num_begun += 1
        sources = [(num_common(ids, other.ids), other) for other in (*self._batch, *self._parked)]
        common, source = max(sources, key=lambda pair: pair[0], default=(0, None))
        if source is not None and common >= _LEAST_SHARED:
            fed = [node.draft_id for node in source.row.path]
            queued = row.queued_ids()[:-_READ_ANEW]
            size = min(len(fed), len(queued))
            shared = num_common(np.array(fed[:size]), np.array(queued[:size]))
            if shared >= _LEAST_SHARED:
                row.adopt(shared)
                if source.cache is not None:
                    request.cache = source.cache.cut(shared)
                elif source.place is not None:
                    request.cache = self.model.save(source.place, shared)
                self.stats.num_shared_tokens += shared
        return request

    # ------------------------------------------------------------------ the batch

    def _fitting(self, found: dict[int, RequestRow], limits: Sequence[int]) -> tuple[dict[int, RequestRow], int]:
        """Leave out the longest rows until the batch keeps within the bound; returns the others and their slots."""
        needs = {
            i: len(request.row.path) + request.row.num_to_feed() + _TOKENS_PER_CANDIDATE * limits[i]
            for i, request in found.items()
        }
        while needs and max(needs.values()) * len(needs) > self.max_cached_tokens:
            del needs[max(needs, key=lambda i: needs[i])]
            self.stats.num_left_out += 1
        return {i: found[i] for i in needs}, max(needs.values(), default=0) * len(needs)

    def _arrange(self, active: Sequence[RequestRow]) -> None:
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

    def _park(self, request: RequestRow) -> None:
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
