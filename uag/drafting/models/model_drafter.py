"""The draft model as a source of candidates, with its own tokenizer or the target's."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from uag.drafting.drafter import Ask, Counts, Drafter
from uag.drafting.models.batched_search import draft_steps, run_waves
from uag.drafting.models.cross_row import CrossRow
from uag.drafting.models.opening import open_passes
from uag.drafting.models.passes import PassError, Passes
from uag.drafting.models.rows import Row, RowMaker, fit_context
from uag.projection import Feed, TokenizerPair
from uag.proposal import Proposal


class ModelDrafter(Drafter):
    """Candidates from a draft model; the draft passes of all rows are batched.

    Args:
        model: the draft model.
        pair: the tokenizers; None if neither is known and the models are assumed to share their ids.
        compile_draft: see `CompiledDraft`.

    Raises:
        UnsupportedError: the model cannot draft.
    """

    source = "draft model"
    draws = False  # drafts whose passes draw are refused

    def __init__(self, model: Any, pair: TokenizerPair | None, *, compile_draft: bool = False) -> None:
        num_ids = None if pair is None else len(pair.maps.draft_bytes)
        self.model: Passes = open_passes(model, num_ids, compile_draft=compile_draft)
        self._has_failed, self._rows = False, list[Row]()
        self._maker = RowMaker(model, pair)
        self.strategy = self._maker.strategy

    @property
    def counts(self) -> Counts:
        """The draft model's counts so far."""
        return self.model.counts

    def start(self, prompts: Sequence[Sequence[int]], source_ids: Sequence[Sequence[int]] | None = None) -> None:
        """Start new sequences; no pass runs before the first proposal."""
        self._has_failed = False
        self._rows = [self._maker.make(prompt) for prompt in prompts]
        self.model.start(self._rows, self._encoder_ids(source_ids))
        self._fit_contexts()

    def _encoder_ids(self, source_ids: Sequence[Sequence[int]] | None) -> list[list[int]] | None:
        if source_ids is None or not self.model.is_encoder_decoder:
            return None
        projection = self._maker.projection
        if projection is None:
            return [list(ids) for ids in source_ids]
        return [[node.draft_id for node in CrossRow(projection, ids, ()).forced] for ids in source_ids]

    def time_reading(self, num_tokens: int) -> float:
        """Read the first `num_tokens` of each prompt, except its last token, and return the seconds it took."""
        before = self.counts.forward_s
        for row in self._rows:
            row.adopt(min(num_tokens, len(row.queued_ids()) - 1))
        try:
            self.model.feed([(index, Feed(0, list(row.path))) for index, row in enumerate(self._rows) if row.path])
        except PassError:
            self._has_failed = True
        return self.counts.forward_s - before

    def propose(self, ask: Ask) -> list[list[Proposal]]:
        """Return as many proposals as are expected to pay."""
        proposals: list[list[Proposal]] = [[] for _ in self._rows]
        limits = ask.limits
        if self._has_failed or not any(limits):
            return proposals
        self._fit_contexts()
        self.model.needs_normalizer = ask.needs_normalizer
        self.model.compact()
        steps = {}
        for index, limit in enumerate(limits):
            if limit > 0:
                row, goes_on = self._rows[index], partial(ask.lookahead.go_on, index)
                scoring = partial(ask.scoring, index)
                steps[index] = draft_steps(row, limit, proposals[index], scoring, goes_on, ask.stop_ids)
        try:
            run_waves(self.model, steps)
        except PassError:  # the target continues without the draft; `counts` holds the reason
            self._has_failed = True
        return proposals

    def accept(self, row: int, num_accepted: int, output_ids: Sequence[int]) -> None:
        """Update a row with the target's output."""
        if not self._has_failed:
            self._rows[row].accept(num_accepted, output_ids)

    def release(self) -> None:
        """Drop all sequences."""
        self._rows = []
        self.model.release()

    def _fit_contexts(self) -> None:
        """Shorten contexts that would exceed the draft's positions."""
        for row in self._rows:
            fit_context(row, self.model.max_positions)
