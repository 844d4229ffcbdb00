"""Draft for the requests of a serving engine, which start, move, pause, share prompts and end."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from uag.drafting import RowMaker, draft_steps, run_waves
from uag.projection import Scoring, TokenizerPair
from uag.proposal import Proposal
from uag.vllm.open_draft import OpenDraft
from uag.vllm.pace import Pace
from uag.vllm.requests import IdArray, Request, RequestPool, ServingStats

_NO_ID = (1 << 31) - 1
"""Replaces negative ids, which no vocabulary has."""


class RequestDrafter:
    """Drafts for the requests that an engine runs.

    Args:
        model, pair: the draft model and the tokenizers.
        vocab_size: size of the target's head; ids at or above it are not proposed.
        most_candidates: maximum number of candidates that the engine accepts per request.
        min_confidence, max_cached_tokens: as in `uag.vllm.Settings`.

    Raises:
        UnsupportedError: the draft cannot draft.
    """

    def __init__(
        self,
        model: Any,
        pair: TokenizerPair,
        *,
        vocab_size: int,
        most_candidates: int,
        min_confidence: float | None,
        max_cached_tokens: int,
    ) -> None:
        self.model = OpenDraft(model, len(pair.maps.draft_bytes))
        self.stats = ServingStats()
        self.pace = Pace(most_candidates, min_confidence)
        maker = RowMaker(model, pair)
        self.strategy = maker.strategy
        eos_id = pair.target.controls.eos_id
        self._scoring = lambda _: Scoring(vocab_size)
        self._stop_ids = frozenset(() if eos_id is None else (eos_id,))
        self.requests = RequestPool(maker, self.model, max_cached_tokens, self.stats)

    def reset(self) -> None:
        """Drop every request, but keep learned values and statistics."""
        self.requests.clear()
        self.pace.interrupt()

    def propose(self, contexts: Sequence[IdArray], limits: Sequence[int]) -> list[list[Proposal]]:
        """Return at most `limits[i]` proposals for request i; `contexts[i]` are its target ids, prompt and output."""
        start_s, stats, pace = time.perf_counter(), self.stats, self.pace
        proposals: list[list[Proposal]] = [[] for _ in contexts]
        # Copied, because the engine reuses its buffers.
        contexts_by_place = {
            i: np.where(ids < 0, _NO_ID, ids) for i, ids in enumerate(contexts) if limits[i] > 0 and ids.size
        }
        if not contexts_by_place:
            pace.interrupt()
            return proposals
        sizes = [ids.size for ids in contexts] if len(contexts_by_place) == len(contexts) else []
        num_begun = stats.num_begun
        # `plan` below learns from the outcomes of the last candidates.
        requests = self.requests.find(contexts_by_place, pace.outcomes) if pace.has_drafted else None
        limit = pace.plan(sizes, len(contexts_by_place), start_s)
        if limit:
            if requests is None:
                requests = self.requests.find(contexts_by_place, pace.outcomes)
            requests |= {i: self.requests.begin(ids) for i, ids in contexts_by_place.items() if i not in requests}
            self._draft(requests, [min(limit, n) for n in limits], proposals)
        else:
            stats.num_paused_rounds += 1
        end_s = time.perf_counter()
        stats.draft_s += end_s - start_s
        lengths = [len(proposals[i]) for i in contexts_by_place]
        pace.end(sizes, lengths, end_s - start_s, end_s, stats.num_begun > num_begun)
        return proposals

    def _draft(self, requests: dict[int, Request], limits: Sequence[int], proposals: list[list[Proposal]]) -> None:
        """Append candidates of these requests to `proposals`."""
        steps = {}
        for place, (i, request) in enumerate(self.requests.activate(requests, limits).items()):
            request.proposals = proposals[i]
            goes_on = partial(self.pace.lookahead.go_on, i)
            steps[place] = draft_steps(request.row, limits[i], proposals[i], self._scoring, goes_on, self._stop_ids)
        run_waves(self.model, steps)
        self.stats.num_rounds += 1
        self.stats.num_candidate_tokens += sum(map(len, proposals))
        self.stats.num_draft_forwards = self.model.counts.num_forwards
