"""To be described."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from uag.drafting.drafter import Drafter, GoOn, LawFactory
from uag.drafting.lookup import PromptLookup
from uag.lookahead.lookahead import Lookahead
from uag.projection.vocabulary import SortedBytes
from uag.proposal import Proposal


class LookupFirst(Drafter):
    """Prompt lookup where its match promises more tokens per second than the draft model, else the draft model.

    Args:
        model: the draft model's drafter.
    """

    def __init__(self, model: Drafter) -> None:
        self.model = model
        self.lookup = PromptLookup()
        self.strategy = model.strategy
        self._from_model: list[bool] = []

    @property
    def num_forwards(self) -> int:
        """Draft passes so far, over all calls."""
        return self.model.num_forwards

    @property
    def num_tokens(self) -> int:
        """Draft tokens run so far, prompts left out."""
        return self.model.num_tokens

    @property
    def seconds(self) -> float:
        """Seconds spent so far in draft passes."""
        return self.model.seconds

    @property
    def prefill_s(self) -> float:
        """Seconds the draft model spent so far on reading prompts."""
        return self.model.prefill_s

    @property
    def compile_s(self) -> float:
        """Seconds spent so far on compiling the draft model's passes."""
        return self.model.compile_s

    @property
    def fall_backs(self) -> Sequence[str]:
        """What the draft model could not do as asked for."""
        return self.model.fall_backs

    @property
    def size(self) -> int:
        """Weights of the draft model."""
        return self.model.size

    @property
    def text_order(self) -> SortedBytes | None:
        """The target's texts in byte order, where proposals come from text."""
        return self.model.text_order

    def check(self, model: Any) -> None:
        """Refuse a target that the draft model cannot serve; see `Drafter.check`."""
        self.model.check(model)

    def prepare(self, logits_processor: Any, stopping_criteria: Any) -> None:
        """Learn what of a call concerns the draft model."""
        self.model.prepare(logits_processor, stopping_criteria)

    def start(self, prompts: Sequence[Sequence[int]], source_ids: Sequence[Sequence[int]] | None = None) -> None:
        """Begin with new sequences."""
        self.model.start(prompts, source_ids)
        self.lookup.start(prompts, source_ids)
        self._from_model = [True] * len(prompts)

    def propose_free(self, rooms: Sequence[int], lookahead: Lookahead, limit: int) -> list[list[Proposal]]:
        """Return a row's match where it promises more tokens per second than the draft model does."""
        if lookahead.fixed is not None:
            return [[] for _ in rooms]
        needed = lookahead.model_rate() if limit else 0.0
        proposals = []
        for row, room in enumerate(rooms):
            found, rate = self.lookup.look(row, room, lookahead, limit)
            if not found or rate <= needed:
                self.lookup.drop(row)
                found = []
            proposals.append(found)
        if not limit:  # else the pass is as wide as the draft model makes it
            self.lookup.fit(proposals, rooms, lookahead)
        self._from_model = [not found for found in proposals]
        return proposals

    def propose(self, limits: Sequence[int], law: LawFactory, go_on: GoOn) -> list[list[Proposal]]:
        """Return the draft model's candidates."""
        return self.model.propose(limits, law, go_on)

    def accept(self, row: int, num_accepted: int, output_ids: Sequence[int]) -> None:
        """Tell both sources what the target wrote."""
        self.lookup.accept(row, num_accepted, output_ids)
        self.model.accept(row, num_accepted if self._from_model[row] else 0, output_ids)
        self._from_model[row] = True

    def release(self) -> None:
        """Forget every sequence."""
        self.lookup.release()
        self.model.release()
