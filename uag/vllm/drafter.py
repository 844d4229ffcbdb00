"""Drafting for a serving engine: requests that come, move, pause, share prompts and go."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from uag.drafting import RowMaker, draft_steps, run_waves
from uag.lookahead import MAX_CANDIDATES
from uag.projection import Scoring, TokenizerPair
from uag.proposal import Proposal
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
        min_confidence: see `Settings`.
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
        self.requests = Requests(maker, self.model, max_cached_tokens, self.stats)

    def reset(self) -> None:
        """Forget every request; what was learnt and counted stays."""
        self.requests.clear()
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
        # These are copies: the engine writes over its buffers.
        asked = {i: np.where(ids < 0, _NO_ID, ids) for i, ids in enumerate(contexts) if limits[i] > 0 and ids.size}
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
            found = self._known(asked) if found is None else found
            found |= {i: self.requests.begin(ids) for i, ids in asked.items() if i not in found}
            self._draft(found, limits, proposals)
        ended = time.perf_counter()
        self.stats.draft_s += ended - began
        lengths = [len(proposals[i]) for i in asked]
        self.pace.end(sizes, lengths, ended - began, ended, self.stats.num_begun > num_begun)
        return proposals

    def _known(self, asked: dict[int, IdArray]) -> dict[int, Request]:
        """Return the request of each context that has one, brought up to date."""
        found = self.requests.known(asked)
        for i, request in found.items():
            outcome = request.update(asked[i], self.model.max_positions)
            if outcome is not None:
                self.pace.outcomes.append(outcome)
                self.stats.num_accepted_tokens += outcome[1]
        return found

    def _draft(self, found: dict[int, Request], limits: Sequence[int], proposals: list[list[Proposal]]) -> None:
        """Draft for these requests, into `proposals`."""
        active = self.requests.take(found, limits)
        steps = {}
        for place, (i, request) in enumerate(active.items()):
            request.proposals = proposals[i]
            goes_on = partial(self.pace.lookahead.go_on, i)
            steps[place] = draft_steps(request.row, limits[i], proposals[i], self._scoring, goes_on, self._stop_ids)
        run_waves(self.model, steps)
        stats = self.stats
        stats.num_rounds += 1
        stats.num_row_rounds += len(active)
        stats.num_candidate_tokens += sum(map(len, proposals))
        stats.num_draft_forwards = self.model.counts.num_forwards

    def _scoring(self, _position: int) -> Scoring:
        return Scoring(self.vocab_size)
