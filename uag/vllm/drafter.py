"""Drafting for a serving engine: requests that come, move, pause, share prompts and go."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from uag.drafting import RowMaker, draft_steps, run_waves
from uag.lookahead import MAX_CANDIDATES
from uag.projection import Scoring, TokenizerPair
from uag.proposal import Proposal
from uag.vllm.batch import Batch
from uag.vllm.open_draft import OpenDraft
from uag.vllm.pace import Pace
from uag.vllm.requests import IdArray, Request, Requests
from uag.vllm.stats import ServingStats

_NO_ID = (1 << 31) - 1
"""Stands for ids below zero, which no vocabulary has."""


class RequestDrafter:
    """Drafts for whatever requests an engine runs at the moment.

    Args:
        model: the draft model.
        pair: the tokenizers.
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
        UnsupportedError: the draft cannot draft.
    """

    def __init__(
        self,
        model: Any,
        pair: TokenizerPair,
        *,
        vocab_size: int,
        min_confidence: float | None = 0.0,
        most_candidates: int = MAX_CANDIDATES,
        max_cached_tokens: int = 131_072,
        max_branches: int = 1,
        heal: bool = True,
    ) -> None:
        self.model = OpenDraft(model, len(pair.maps.draft_bytes))
        self.vocab_size = vocab_size
        self.stats = ServingStats()
        self.pace = Pace(most_candidates, min_confidence)
        maker = RowMaker(model, pair, max_branches=max_branches, heal=heal)
        self.strategy = maker.strategy
        eos_id = pair.target.controls.eos_id
        self._stop_ids = frozenset(() if eos_id is None else (eos_id,))
        self._requests = Requests(maker, self.model, self.stats)
        self._batch = Batch(self.model, max_cached_tokens, self.stats)
        self._by_position: dict[int, Request] = {}

    def reset(self) -> None:
        """Forget every request; what was learnt and counted stays."""
        self._batch.clear()
        self._by_position = {}
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
            self.pace.interrupt()
            return proposals
        sizes = [ids.size for ids in contexts] if len(asked) == len(contexts) else []
        num_begun = self.stats.num_begun
        # What became of the last candidates is told before the next ones are planned.
        found = self._known(asked) if self.pace.has_drafted else None
        limit = self.pace.plan(sizes, len(asked), began)
        self.stats.num_paused_rounds += not limit
        limits = [min(limit, n) for n in limits]
        if any(limits):
            self._draft(asked, self._known(asked) if found is None else found, limits, proposals)
        ended = time.perf_counter()
        self.stats.draft_s += ended - began
        lengths = [len(proposals[i]) for i in asked]
        self.pace.end(sizes, lengths, ended - began, ended, self.stats.num_begun > num_begun)
        return proposals

    def _known(self, asked: dict[int, IdArray]) -> dict[int, Request]:
        """Return the request of each context that has one, brought up to date."""
        found = self._requests.known(asked, self._batch, self._by_position)
        for i, request in found.items():
            outcome = request.update(asked[i], self.model.max_positions)
            if outcome is not None:
                self.pace.outcomes.append(outcome)
                self.stats.num_accepted_tokens += outcome[1]
        return found

    def _draft(
        self,
        asked: dict[int, IdArray],
        found: dict[int, Request],
        limits: Sequence[int],
        proposals: list[list[Proposal]],
    ) -> None:
        """Draft for the contexts that were asked for, into `proposals`."""
        stats = self.stats
        stats.num_rounds += 1
        for i, ids in asked.items():
            if i not in found:
                found[i] = self._requests.begin(ids, self._batch)
        active = self._batch.take({i: found[i] for i in sorted(found)}, limits)
        steps = {}
        for i, request in active.items():
            request.proposals, request.last_round = proposals[i], stats.num_rounds
            goes_on = partial(self.pace.lookahead.go_on, i)
            place = request.place
            if place is not None:
                steps[place] = draft_steps(request.row, limits[i], proposals[i], self._scoring, goes_on, self._stop_ids)
        run_waves(self.model, steps)
        self._by_position = active
        stats.num_row_rounds += len(active)
        stats.num_candidate_tokens += sum(map(len, proposals))
        stats.num_draft_forwards = self.model.counts.num_forwards

    def _scoring(self, _position: int) -> Scoring:
        return Scoring(self.vocab_size)
