"""To be described."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from uag.adapters import TokenizerAdapter
from uag.decoding.stopping import Stopping
from uag.drafting.compiled import StaticDraft
from uag.drafting.cross_row import CrossRow
from uag.drafting.drafter import Drafter, GoOn, LawFactory
from uag.drafting.model import DraftModel
from uag.drafting.rows import Row, RowMaker, fit_context, pair_maps
from uag.drafting.waves import draft_steps, run_waves
from uag.errors import PairError
from uag.projection.vocabulary import SortedBytes, VocabularyMap
from uag.proposal import Proposal
from uag.sampling.warpers import DraftRules


class ModelDrafter(Drafter):
    """Candidates from a draft model, with its own tokenizer or the target's.

    Args:
        model: the draft model.
        maps: the maps of the pair.
        target: adapter of the target's tokenizer; None where the draft shares it.
        draft: adapter of the draft's tokenizer; None where the draft shares it.
        max_branches: see `Projection`.
        heal: see `Projection`.
        compile_draft: see `StaticDraft`.
    """

    def __init__(
        self,
        model: Any,
        maps: VocabularyMap | None,
        target: TokenizerAdapter | None,
        draft: TokenizerAdapter | None,
        *,
        max_branches: int = 1,
        heal: bool = True,
        compile_draft: bool = False,
    ) -> None:
        kind = StaticDraft if compile_draft else DraftModel
        self.model = kind(model, None if maps is None else len(maps.draft_bytes))
        self.maps = maps
        self.stop_ids: frozenset[int] = frozenset()
        self._rows: list[Row] = []
        self._maker = RowMaker(model, maps, target, draft, max_branches=max_branches, heal=heal)
        self.strategy = self._maker.strategy

    @property
    def num_forwards(self) -> int:
        """Draft passes so far."""
        return self.model.num_forwards

    @property
    def seconds(self) -> float:
        """Time spent in draft passes so far."""
        return self.model.seconds

    @property
    def size(self) -> int:
        """Weights of the draft model."""
        return self.model.size

    @property
    def prefill_s(self) -> float:
        """Seconds spent so far on reading prompts."""
        return self.model.prefill_s

    @property
    def compile_s(self) -> float:
        """Seconds spent so far on compiling passes."""
        return self.model.compile_s

    @property
    def fall_backs(self) -> Sequence[str]:
        """Why passes are not compiled, where they should be."""
        return self.model.fall_backs

    @property
    def num_tokens(self) -> int:
        """Draft tokens run so far, prompts left out."""
        return self.model.num_tokens

    @property
    def text_order(self) -> SortedBytes | None:
        """The target's texts in byte order; None where the draft shares its ids."""
        return self.maps.target_sorted if self.maps is not None else None

    def check(self, model: Any) -> None:
        """Refuse a decoder-only target for an encoder-decoder draft: there is no source text to read.

        Raises:
            PairError: the draft is an encoder-decoder and the target is not.
        """
        if self.model.is_encoder_decoder and not model.config.is_encoder_decoder:
            raise PairError(
                f"The draft {self.model.name!r} is an encoder-decoder and the target {type(model).__name__!r} is not. "
                "Use a decoder-only draft."
            )

    def prepare(self, logits_processor: Any, stopping_criteria: Any) -> None:
        """Learn what of the call concerns the draft: ids that end a row, and whether penalties need logits."""
        stopping = Stopping(stopping_criteria)
        self.stop_ids = stopping.eos_ids
        self.model.needs_normalizer = DraftRules(logits_processor).needs_normalizer

    def start(self, prompts: Sequence[Sequence[int]], source_ids: Sequence[Sequence[int]] | None = None) -> None:
        """Begin with new sequences; nothing runs before the first proposal."""
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

    def propose(self, limits: Sequence[int], law: LawFactory, go_on: GoOn) -> list[list[Proposal]]:
        """Return proposals, the rows' draft passes batched into waves."""
        self._fit_contexts()
        self.model.compact()
        proposals: list[list[Proposal]] = [[] for _ in self._rows]
        steps = {}
        for index, limit in enumerate(limits):
            if limit > 0:
                row, goes_on = self._rows[index], partial(go_on, index)
                steps[index] = draft_steps(row, limit, proposals[index], partial(law, index), goes_on, self.stop_ids)
        run_waves(self.model, steps)
        return proposals

    def accept(self, row: int, num_accepted: int, output_ids: Sequence[int]) -> None:
        """Learn what the target wrote."""
        self._rows[row].accept(num_accepted, output_ids)

    def release(self) -> None:
        """Forget every sequence."""
        self._rows = []
        self.model.release()

    def num_to_feed(self) -> int:
        """Draft tokens that the longest waiting row needs before its next proposal."""
        return max((row.num_to_feed() for row in self._rows), default=0)

    def _fit_contexts(self) -> None:
        """Window the contexts that would outgrow the draft's positions."""
        for row in self._rows:
            fit_context(row, self.model.max_positions)


def model_drafter(
    model: Any, target: TokenizerAdapter | None, draft: TokenizerAdapter | None, **options: Any
) -> ModelDrafter:
    """Make the drafter that fits a pair: shared vocabulary where the tokenizers are equal, else cross-tokenizer.

    Raises:
        PairError: the draft's text can never become target tokens.
        UnsupportedError: the model cannot draft.
    """
    if target is None or draft is None:
        return ModelDrafter(model, None, None, draft or target, **options)
    return ModelDrafter(model, pair_maps(target, draft), target, draft, **options)
