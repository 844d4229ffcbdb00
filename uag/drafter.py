"""Sources of candidates: what the decoding loop asks for, and the draft model as such a source.

The loop knows nothing of tokenizers or draft caches: it starts a drafter on the prompts, asks for proposals and tells
what the target wrote. Draft passes of all rows are batched into waves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from uag.adapters import TokenizerAdapter
from uag.draft import DraftModel
from uag.errors import PairError
from uag.law import ProposalLaw
from uag.lookahead import Lookahead
from uag.projection import Projection
from uag.rows import CrossRow, Row, SharedRow
from uag.selection import DraftRules
from uag.stopping import Stopping
from uag.tree import Proposal
from uag.vocabulary import SortedBytes, VocabularyMap, vocabulary_map

_POSITION_MARGIN = 64
"""Positions kept free in the draft's context for one round."""

LawFactory = Callable[[int, int], ProposalLaw]
"""(row, number of candidates before) -> how to score that output step."""

GoOn = Callable[[int, Sequence[Proposal]], bool]
"""(row, its proposals so far) -> whether one more is worth its cost."""


class Drafter(Protocol):
    """A source of candidates.

    A class of its own inherits from this one: what has a body here has a default, and only `start`, `propose`, `accept`
    and `release` must be written.

    Attributes:
        strategy: name for the statistics.
    """

    strategy: str

    @property
    def num_forwards(self) -> int:
        """Draft passes so far, over all calls."""
        return 0

    @property
    def num_tokens(self) -> int:
        """Draft tokens run so far, prompts left out."""
        return 0

    @property
    def seconds(self) -> float:
        """Seconds spent so far in draft passes."""
        return 0.0

    @property
    def prefill_s(self) -> float:
        """Seconds spent so far on reading prompts."""
        return 0.0

    @property
    def size(self) -> int:
        """Weights of the draft model; 0 where there is none."""
        return 0

    @property
    def text_order(self) -> SortedBytes | None:
        """The target's texts in byte order, where proposals come from text; None where ids are taken over."""
        return None

    def check(self, model: Any) -> None:  # noqa: ARG002 - for those that need it
        """Refuse, before any work, a target that this drafter cannot serve.

        Raises:
            PairError: the pair cannot work.
        """
        return

    def prepare(self, logits_processor: Any, stopping_criteria: Any) -> None:  # noqa: ARG002 - for those that need it
        """Learn what of a call concerns the drafter, before `start`."""
        return

    def start(self, prompts: Sequence[Sequence[int]], source_ids: Sequence[Sequence[int]] | None = None) -> None:
        """Begin with new sequences.

        Args:
            prompts: target ids of each row's prompt, without padding.
            source_ids: target ids of each row's encoder input, for encoder-decoder targets.
        """
        ...

    def propose(self, limits: Sequence[int], law: LawFactory, go_on: GoOn) -> list[list[Proposal]]:
        """Return at most `limits[row]` proposals for each row."""
        ...

    def propose_free(self, rooms: Sequence[int], lookahead: Lookahead, limit: int) -> list[list[Proposal]]:  # noqa: ARG002
        """Return candidates that cost no draft pass, for the rows where they promise more than `propose`.

        Args:
            rooms: candidates that each row can take.
            lookahead: knows what passes cost and how often the draft is accepted.
            limit: candidates that the draft model may draft in this round; 0 where it pauses.
        """
        return [[] for _ in rooms]

    def accept(self, row: int, num_accepted: int, output_ids: Sequence[int]) -> None:
        """Learn what the target wrote in this round: the accepted candidates and its own tokens after them."""
        ...

    def release(self) -> None:
        """Forget every sequence and free the memory."""
        ...


class ModelDrafter(Drafter):
    """Candidates from a draft model, with its own tokenizer or the target's.

    Args:
        model: the draft model.
        maps: the maps of the pair.
        target: adapter of the target's tokenizer; None where the draft shares it.
        draft: adapter of the draft's tokenizer; None where the draft shares it.
        max_branches: see `Projection`.
        heal: see `Projection`.
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
    ) -> None:
        self.model = DraftModel(model, None if maps is None else len(maps.draft_bytes))
        self.maps = maps
        self.stop_ids: frozenset[int] = frozenset()
        self._draft = draft
        self._rows: list[Row] = []
        self._projection: Projection | None = None
        if maps is not None and not maps.is_identity and target is not None and draft is not None:
            self._projection = Projection(maps, target, draft, max_branches=max_branches, heal=heal)
        self.strategy = "cross-tokenizer" if self._projection else "shared-vocabulary"
        self.prefix_ids = prefix_ids(model, draft)

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
        if self._projection is not None:
            projection = self._projection
            self._rows = [self._cross_row(projection, prompt) for prompt in prompts]
        else:
            self._rows = [SharedRow(prompt, self.prefix_ids) for prompt in prompts]
        self.model.start(self._rows, self._encoder_ids(source_ids))
        self._fit_contexts()

    def _cross_row(self, projection: Projection, prompt: Sequence[int]) -> CrossRow:
        row = CrossRow(projection, prompt, self.prefix_ids)
        return row if row.forced else CrossRow(projection, prompt, fallback_prefix(projection.draft))

    def _encoder_ids(self, source_ids: Sequence[Sequence[int]] | None) -> list[list[int]] | None:
        if source_ids is None or not self.model.is_encoder_decoder:
            return None
        if self._projection is None or self._draft is None:
            return [list(ids) for ids in source_ids]
        return [[node.draft_id for node in CrossRow(self._projection, ids, ()).forced] for ids in source_ids]

    def propose(self, limits: Sequence[int], law: LawFactory, go_on: GoOn) -> list[list[Proposal]]:
        """Return proposals, the rows' draft passes batched into waves."""
        self._fit_contexts()
        self.model.compact()
        proposals: list[list[Proposal]] = [[] for _ in self._rows]
        waiting = {}
        for index, limit in enumerate(limits):
            if limit > 0:
                waiting[index] = self._draft_row(index, limit, proposals[index], law, go_on)
        while waiting:
            wave = []
            for index, steps in list(waiting.items()):
                feed = next(steps, None)
                if feed is None or not self.model.fits(feed):
                    del waiting[index]
                else:
                    wave.append((index, feed))
            if wave:
                self.model.feed(wave)
        return proposals

    def _draft_row(self, index: int, limit: int, proposals: list[Proposal], law: LawFactory, go_on: GoOn) -> Any:
        row = self._rows[index]
        is_last = False
        while len(proposals) < limit:
            step_law = law(index, len(proposals))
            # The last candidate is read off the distributions at hand where they have an answer: no pass follows it.
            step_law.may_feed = not is_last and len(proposals) + 1 < limit
            proposal = yield from row.next_target(step_law)
            if proposal is None and not is_last and not step_law.may_feed:
                step_law.may_feed = True
                proposal = yield from row.next_target(step_law)
            if proposal is None:
                return
            proposals.append(proposal)
            can_follow = row.commit(proposal.target_id)
            if is_last or not can_follow or proposal.target_id in self.stop_ids:
                return
            is_last = not go_on(index, proposals)

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
        bound = self.model.max_positions
        margin = min(_POSITION_MARGIN, bound // 4)
        for row in self._rows:
            if len(row.path) + row.num_to_feed() + margin > bound:
                row.rewindow(bound // 2)


def prefix_ids(model: Any, draft: TokenizerAdapter | None) -> tuple[int, ...]:
    """Return the draft ids that every sequence of the draft starts with.

    A causal draft starts as its tokenizer starts a text (BOS where it adds one); a draft that has no such token still
    needs one token to condition on, where the prompt gives none.
    """
    if model.config.is_encoder_decoder:
        config = model.generation_config
        start = config.decoder_start_token_id
        return (start if isinstance(start, int) else config.bos_token_id or 0,)
    if draft is None:
        bos = model.generation_config.bos_token_id
        return (bos,) if isinstance(bos, int) else (0,)
    controls = draft.controls
    ids: list[int] = []
    for token_id in draft.tokenizer("a", add_special_tokens=True)["input_ids"]:
        if token_id not in controls.control_ids:
            break
        ids.append(token_id)
    return tuple(ids)


def fallback_prefix(draft: TokenizerAdapter) -> tuple[int, ...]:
    """Return one token to condition on where neither the prompt nor the tokenizer gives one."""
    controls = draft.controls
    known = (controls.bos_id, controls.eos_id, controls.pad_id, controls.unk_id)
    return (next((token_id for token_id in known if token_id is not None), 0),)


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
    maps = vocabulary_map(target, draft)
    if not maps.is_identity and maps.num_reachable == 0:
        raise PairError(
            f"The tokenizers {type(target.tokenizer).__name__!r} (target) and {type(draft.tokenizer).__name__!r} "
            "(draft) have no bytes in common: no token of the draft begins any text that the target can write. "
            "Use a draft whose tokenizer covers the target's text, or call generate without an assistant."
        )
    return ModelDrafter(model, maps, target, draft, **options)
