"""Draft for the requests of a serving engine, of which only the ids are known.

Wherever the engine puts a request, it keeps the row whose ids its own ids continue; others get a new row.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from uag.drafting import Row, RowMaker, TorchPasses, check_draft, draft_steps, fit_context, run_waves
from uag.errors import UnsupportedError
from uag.hf import models
from uag.hf.cache import caches
from uag.hf.cache.book import Book
from uag.lookahead import RowOutcome
from uag.projection import Scoring, TokenizerPair
from uag.proposal import Proposal, num_equal
from uag.vllm.pace import Pace

IdArray = npt.NDArray[np.integer[Any]]

_NO_ID = (1 << 31) - 1  # replaces negative ids, which no vocabulary has
_NUM_LAST = 8  # draft tokens at the end of a prompt that are read in the batch: healing uses their distributions
_TOKENS_PER_CANDIDATE = 4  # draft tokens that a candidate is assumed to need


@dataclass
class ServingStats:
    """Statistics since the start, over all requests.

    A paused round drafted nothing because it would not have paid; a row is left out if the cache is too small.
    `failures` counts calls that raised an error and proposed nothing, by the error's class.
    """

    num_rounds: int = 0
    num_paused_rounds: int = 0
    num_candidate_tokens: int = 0
    num_accepted_tokens: int = 0
    num_begun: int = 0
    num_left_out: int = 0
    num_draft_forwards: int = 0
    draft_s: float = 0.0
    failures: dict[str, int] = field(default_factory=dict)


@dataclass(eq=False)
class Request:
    """A row of the draft's batch, the target ids of its last round, and its proposals in that round."""

    row: Row
    ids: IdArray
    proposals: list[Proposal] = field(default_factory=list)

    def is_continued_by(self, ids: IdArray) -> bool:
        size = self.ids.size
        can_be = size <= ids.size and self.ids[-1] == ids[size - 1]  # cheap, for hundreds
        return bool(can_be and (self.ids == ids[:size]).all())


class RequestDrafter:
    """Drafts for the requests that an engine runs.

    Ids at or above `vocab_size`, the size of the target's head, are not proposed; other arguments as in
    `uag.vllm.Settings`.
    """

    def __init__(
        self, model: Any, pair: TokenizerPair, *, vocab_size: int, min_confidence: float | None, max_cached_tokens: int
    ) -> None:
        self.model = open_for_requests(model, len(pair.maps.draft_bytes))
        self.stats = ServingStats()
        self.pace = Pace(min_confidence)
        self.requests: dict[int, Request] = {}  # by position in the engine's batch, in the order of the draft's batch
        self._max_cached_tokens = max_cached_tokens
        self._maker = RowMaker(model, pair)
        self.strategy = self._maker.strategy
        eos_id = pair.target.controls.eos_id
        self._scoring = lambda _: Scoring(vocab_size)
        self._stop_ids = frozenset(() if eos_id is None else (eos_id,))

    def reset(self) -> None:
        """Drop every request, but keep learned values and statistics."""
        self.requests = {}
        self.model.start(())
        self.pace.interrupt()

    def propose(self, contexts: Sequence[IdArray], limits: Sequence[int]) -> list[list[Proposal]]:
        """Return at most `limits[i]` proposals for request i; `contexts[i]` are its target ids, prompt and output."""
        start_s = time.perf_counter()
        proposals: list[list[Proposal]] = [[] for _ in contexts]
        # Copied, because the engine reuses its buffers.
        running = {i: np.where(ids < 0, _NO_ID, ids) for i, ids in enumerate(contexts) if limits[i] > 0 and ids.size}
        if not running:
            self.pace.interrupt()
            return proposals
        sizes = [ids.size for ids in contexts] if len(running) == len(contexts) else []
        outcomes: list[RowOutcome] = []
        known = self._known(running, outcomes)
        limit = self.pace.plan(sizes, len(running), start_s, outcomes)
        if limit:
            limits = [min(limit, n) for n in limits]
            self.stats.num_begun += len(running) - len(known)
            requests = {i: known.get(i) or Request(self._maker.make(ids.tolist()), ids) for i, ids in running.items()}
            self._set_batch(self._fitting(requests, limits))
            self._draft(limits, proposals)
        else:
            self.stats.num_paused_rounds += 1
        end_s = time.perf_counter()
        self.stats.draft_s += end_s - start_s
        self.pace.end(sizes, [len(proposals[i]) for i in running], end_s - start_s, end_s)
        return proposals

    def _known(self, running: Mapping[int, IdArray], outcomes: list[RowOutcome]) -> dict[int, Request]:
        """Return the request that each context continues, updated to it, and append what became of its proposals."""
        known: dict[int, Request] = {}
        free = set(self.requests.values())
        for i, ids in running.items():
            at_i = (self.requests[i],) if i in self.requests else ()  # most requests keep their position
            found = (one for one in chain(at_i, self.requests.values()) if one in free and one.is_continued_by(ids))
            if (request := next(found, None)) is None:
                continue
            free.remove(request)
            known[i] = request
            new: list[int] = ids[request.ids.size :].tolist()
            num_accepted = num_equal((proposal.target_id for proposal in request.proposals), new)
            request.row.accept(num_accepted, new)
            if new:
                outcomes.append((request.proposals, num_accepted))
                self.stats.num_accepted_tokens += num_accepted
            request.ids, request.proposals = ids, []
        return known

    def _fitting(self, requests: Mapping[int, Request], limits: Sequence[int]) -> dict[int, Request]:
        """Return the requests without the longest ones, as far as the cache is too small for all."""
        needs = {}
        for i, request in requests.items():
            fit_context(request.row, self.model.max_positions)
            num_tokens = len(request.row.path) + request.row.num_to_feed()
            needs[i] = num_tokens + _TOKENS_PER_CANDIDATE * limits[i]
        while needs and max(needs.values()) * len(needs) > self._max_cached_tokens:
            del needs[max(needs, key=lambda i: needs[i])]
            self.stats.num_left_out += 1
        return {i: requests[i] for i in needs}

    def _set_batch(self, requests: dict[int, Request]) -> None:
        """Make these requests the draft's batch, and read the prompts of new ones."""
        before, now = list(self.requests.values()), list(requests.values())
        self.requests = requests
        if now == before:
            return
        rows = [request.row for request in now]
        if set(now).isdisjoint(before):
            self.model.start(rows)
        else:
            self.model.rows = rows
            self.model.books[0].take([before.index(one) if one in before else None for one in now])
        for place, row in enumerate(rows):
            if not row.path and len(rows) > 1:
                self._read(place, row)

    def _read(self, place: int, row: Row) -> None:
        """Read a prompt except for its last tokens alone, since all other rows would be padded to its length."""
        row.adopt(max(len(row.queued_ids()) - _NUM_LAST, 0))
        if row.path:
            alone = Book(caches.dynamic_cache)
            with self.model.counted(reads_prompt=True):
                self.model.run(alone, {0: row.path})
            self.model.books[0].put(place, alone)

    def _draft(self, limits: Sequence[int], proposals: list[list[Proposal]]) -> None:
        steps = {}
        for place, (i, request) in enumerate(self.requests.items()):
            request.proposals = proposals[i]
            goes_on = partial(self.pace.lookahead.go_on, i)
            steps[place] = draft_steps(request.row, limits[i], proposals[i], self._scoring, goes_on, self._stop_ids)
        run_waves(self.model, steps)
        self.stats.num_rounds += 1
        self.stats.num_candidate_tokens += sum(map(len, proposals))
        self.stats.num_draft_forwards = self.model.counts.num_forwards


def open_for_requests(model: Any, num_ids: int) -> TorchPasses:
    """Return the passes of a draft whose rows come and go; refuse one that cannot have such rows."""
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
