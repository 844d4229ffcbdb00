"""Draft for the requests of a serving engine, which start, move, pause, share prompts and end."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from uag.drafting import RowMaker, TorchPasses, check_draft, draft_steps, run_waves
from uag.errors import UnsupportedError
from uag.hf import models
from uag.lookahead import RowOutcome
from uag.projection import Scoring, TokenizerPair
from uag.proposal import Proposal
from uag.vllm.pace import Pace
from uag.vllm.requests import IdArray, Request, RequestPool, ServingStats

_NO_ID = (1 << 31) - 1
"""Replaces negative ids, which no vocabulary has."""


class RequestDrafter:
    """Drafts for the requests that an engine runs.

    Args:
        model, pair: the draft model and the tokenizers.
        vocab_size: size of the target's head; ids at or above it are not proposed.
        min_confidence, max_cached_tokens: as in `uag.vllm.Settings`.

    Raises:
        UnsupportedError: the draft cannot draft, is an encoder-decoder, or keeps states.
    """

    def __init__(
        self,
        model: Any,
        pair: TokenizerPair,
        *,
        vocab_size: int,
        min_confidence: float | None,
        max_cached_tokens: int,
    ) -> None:
        self.model = open_for_requests(model, len(pair.maps.draft_bytes))
        self.stats = ServingStats()
        self.pace = Pace(min_confidence)
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
        start_s = draft_start_s = time.perf_counter()
        stats = self.stats
        proposals: list[list[Proposal]] = [[] for _ in contexts]
        # Copied, because the engine reuses its buffers.
        contexts_by_place = {
            i: np.where(ids < 0, _NO_ID, ids) for i, ids in enumerate(contexts) if limits[i] > 0 and ids.size
        }
        if not contexts_by_place:
            self.pace.interrupt()
            return proposals
        sizes = [ids.size for ids in contexts] if len(contexts_by_place) == len(contexts) else []
        outcomes: list[RowOutcome] = []
        requests = self.requests.find(contexts_by_place, outcomes) if self.pace.has_drafted else None
        limit = self.pace.plan(sizes, len(contexts_by_place), start_s, outcomes)
        if limit:
            if requests is None:
                requests = self.requests.find(contexts_by_place, outcomes)
            new = {i: self.requests.begin(ids) for i, ids in contexts_by_place.items() if i not in requests}
            limits = [min(limit, n) for n in limits]
            active = self.requests.activate(requests | new, limits)
            if new:  # whose prompts were read
                draft_start_s = time.perf_counter()
            self._draft(active, limits, proposals)
        else:
            stats.num_paused_rounds += 1
        end_s = time.perf_counter()
        stats.draft_s += end_s - start_s
        lengths = [len(proposals[i]) for i in contexts_by_place]
        self.pace.end(sizes, lengths, end_s - draft_start_s, end_s, draft_start_s - start_s)
        return proposals

    def _draft(self, active: dict[int, Request], limits: Sequence[int], proposals: list[list[Proposal]]) -> None:
        """Append candidates of these requests to `proposals`."""
        steps = {}
        for place, (i, request) in enumerate(active.items()):
            request.proposals = proposals[i]
            goes_on = partial(self.pace.lookahead.go_on, i)
            steps[place] = draft_steps(request.row, limits[i], proposals[i], self._scoring, goes_on, self._stop_ids)
        run_waves(self.model, steps)
        self.stats.num_rounds += 1
        self.stats.num_candidate_tokens += sum(map(len, proposals))
        self.stats.num_draft_forwards = self.model.counts.num_forwards


def open_for_requests(model: Any, num_ids: int) -> TorchPasses:
    """Return the passes of a draft whose rows come and go.

    Raises:
        UnsupportedError: the draft cannot draft, is an encoder-decoder, or keeps states.
    """
    check_draft(model)
    reason = ""
    if model.config.is_encoder_decoder:
        reason = "is an encoder-decoder, which has no source text to read here. Use a decoder-only draft."
    elif models.state_layers(model):
        reason = (
            "keeps states, which cannot be padded or merged when requests come and go. Use a draft with attention "
            "layers only."
        )
    if reason:
        raise UnsupportedError(f"The draft {model.__class__.__name__!r} {reason}")
    passes = TorchPasses(model, num_ids)
    passes.start(())
    return passes
