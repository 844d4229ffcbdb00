"""The draft model as a source of candidates, with its own tokenizer or the target's.

A row's drafting is a generator that yields the passes it needs; the passes of waiting rows run together.
"""

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from uag.drafting.drafter import Ask, Counts, Drafter
from uag.drafting.models.base import PassError, Passes
from uag.drafting.models.cross_row import CrossRow
from uag.drafting.models.open_draft import open_passes
from uag.drafting.models.rows import Row, RowMaker, fit_context
from uag.projection import Feed, Scoring, TokenizerPair
from uag.proposal import Proposal

Steps = Generator[Feed, None, None]  # a row's drafting in one round: yields the draft passes that it needs


def draft_steps(
    row: Row,
    limit: int,
    proposals: list[Proposal],
    scoring: Callable[[int], Scoring],
    go_on: Callable[[Sequence[Proposal]], bool],
    stop_ids: Collection[int],
) -> Steps:
    """Draft candidates of one row: append at most `limit` to `proposals`, and commit each to the row.

    `scoring` returns how to score the candidate at a position, and `go_on` whether another one is worth its cost.
    """
    is_last = False
    while len(proposals) < limit:
        step = scoring(len(proposals))
        # If possible, the last candidate comes from the available distributions, since no pass follows it.
        step.may_feed = not is_last and len(proposals) + 1 < limit
        proposal = yield from row.next_target(step)
        if proposal is None and not is_last and not step.may_feed:
            step.may_feed = True
            proposal = yield from row.next_target(step)
        if proposal is None:
            return
        proposals.append(proposal)
        can_follow = row.commit(proposal.target_id)
        if is_last or not can_follow or proposal.target_id in stop_ids:
            return
        is_last = not go_on(proposals)


def run_waves(model: Passes, steps: Mapping[int, Steps]) -> None:
    """Run the drafting of several rows to completion, in batched passes."""
    waiting = dict(steps)
    while waiting:
        wave = []
        for index, row_steps in list(waiting.items()):
            feed = next(row_steps, None)
            if feed is None or not model.fits(feed):
                del waiting[index]
            else:
                wave.append((index, feed))
        if wave:
            model.feed(wave)


class ModelDrafter(Drafter):
    """Candidates from a draft model, in batched passes; without `pair`, the models are assumed to share their ids."""

    source = "draft model"
    has_free = False
    draws = False  # drafts whose passes draw are refused

    def __init__(
        self, model: Any, pair: TokenizerPair | None, *, compile_draft: bool = False, draft_weights: str = "int8"
    ) -> None:
        num_ids = None if pair is None else len(pair.maps.draft_bytes)
        self.model: Passes = open_passes(model, num_ids, compile_draft=compile_draft, weights=draft_weights)
        self._rows: list[Row] = []
        self._maker = RowMaker(model, pair)
        self.strategy = self._maker.strategy

    @property
    def counts(self) -> Counts:
        return self.model.counts

    def start(self, prompts: Sequence[Sequence[int]], source_ids: Sequence[Sequence[int]] | None = None) -> None:
        self._rows = [self._maker.make(prompt) for prompt in prompts]
        self.model.start(self._rows, self._encoder_ids(source_ids))
        self._fit_contexts()

    def _encoder_ids(self, source_ids: Sequence[Sequence[int]] | None) -> Sequence[Sequence[int]] | None:
        projection = self._maker.projection
        if source_ids is None or projection is None or not self.model.is_encoder_decoder:
            return source_ids
        return [CrossRow(projection, ids, ()).queued_ids() for ids in source_ids]

    @np.errstate(all="ignore")  # probabilities may underflow, also where the caller makes that an error
    def propose(self, ask: Ask) -> list[list[Proposal]]:
        proposals: list[list[Proposal]] = [[] for _ in self._rows]
        limits = ask.limits
        if self.model.failure or not any(limits):
            return proposals
        self._fit_contexts()
        self.model.needs_normalizer = ask.needs_normalizer
        steps = {}
        for index, row in enumerate(self._rows):
            scoring, goes_on = partial(ask.scoring, index), partial(ask.lookahead.go_on, index)
            steps[index] = draft_steps(row, limits[index], proposals[index], scoring, goes_on, ask.stop_ids)
        with suppress(PassError):  # the target continues without the draft; `counts` holds the reason
            run_waves(self.model, steps)
        return proposals

    def accept(self, row: int, num_accepted: int, output_ids: Sequence[int]) -> None:
        if not self.model.failure:
            self._rows[row].accept(num_accepted, output_ids)

    def release(self) -> None:
        self._rows = []
        self.model.release()

    def _fit_contexts(self) -> None:
        for row in self._rows:
            fit_context(row, self.model.max_positions)
