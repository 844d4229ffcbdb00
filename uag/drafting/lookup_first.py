"""Prompt lookup where its match promises more tokens per second than the draft model, else the draft model."""

from collections.abc import Sequence
from dataclasses import replace

from uag.drafting.drafter import Ask, Counts, Drafter
from uag.drafting.lookup import PromptLookup
from uag.proposal import Proposal


class LookupFirst(Drafter):
    """Two sources of candidates, the better one for each row and round.

    Args:
        model: the draft model's drafter.
    """

    def __init__(self, model: Drafter) -> None:
        self.model = model
        self.lookup = PromptLookup()
        self.strategy = model.strategy
        self._from_model: list[bool] = []

    @property
    def counts(self) -> Counts:
        """What the draft model has done so far."""
        return self.model.counts

    def start(self, prompts: Sequence[Sequence[int]], source_ids: Sequence[Sequence[int]] | None = None) -> None:
        """Begin with new sequences."""
        self.model.start(prompts, source_ids)
        self.lookup.start(prompts, source_ids)
        self._from_model = [True] * len(prompts)

    def propose(self, ask: Ask) -> list[list[Proposal]]:
        """Return a row's match where it promises more tokens per second, else the draft model's candidates."""
        found = self._matches(ask) if ask.lookahead.fixed is None else [[] for _ in ask.rooms]
        self._from_model = [not line for line in found]
        rooms = [0 if line else room for line, room in zip(found, ask.rooms, strict=True)]
        drafted = self.model.propose(replace(ask, rooms=rooms))
        return [line or own for line, own in zip(found, drafted, strict=True)]

    def _matches(self, ask: Ask) -> list[list[Proposal]]:
        needed = ask.lookahead.model_rate() if ask.limit else 0.0
        found = []
        for row, room in enumerate(ask.rooms):
            line, rate = self.lookup.look(row, room, ask)
            if rate <= needed:
                self.lookup.drop(row)
                line = []
            found.append(line)
        if not ask.limit:  # else the pass is as wide as the draft model makes it
            self.lookup.fit(found, ask)
        return found

    def accept(self, row: int, num_accepted: int, output_ids: Sequence[int]) -> None:
        """Tell both sources what the target wrote."""
        self.lookup.accept(row, num_accepted, output_ids)
        self.model.accept(row, num_accepted if self._from_model[row] else 0, output_ids)
        self._from_model[row] = True

    def release(self) -> None:
        """Forget every sequence."""
        self.lookup.release()
        self.model.release()
