"""Free sources of candidates where they promise more tokens per second than the draft model, else the draft model."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from uag.drafting.drafter import Ask, Counts, Drafter
from uag.drafting.free import FreeSource, fit
from uag.proposal import Proposal

_LIKELY = 0.5
"""Where the length is fixed, a free source goes first if its first candidate is as likely: higher asks the draft model
more often."""


class FreeFirst(Drafter):
    """Several sources of candidates, the best one for each row and round.

    Args:
        model: the draft model's drafter, or another that takes time; None where there is none.
        sources: free ones; of two that promise the same the first is asked.

    Attributes:
        model, sources: as given.
    """

    def __init__(self, model: Drafter | None, sources: Sequence[FreeSource]) -> None:
        self.model = model
        self.sources = list(sources)
        first = self.sources[0] if model is None else model
        self.strategy, self.source = first.strategy, first.source
        self._chosen: list[FreeSource | None] = []

    def with_first(self, source: FreeSource) -> Self:
        """Return one with another source before these."""
        return type(self)(self.model, [source, *self.sources])

    @property
    def counts(self) -> Counts:
        """What the draft model has done so far."""
        return Counts() if self.model is None else self.model.counts

    def start(self, prompts: Sequence[Sequence[int]], source_ids: Sequence[Sequence[int]] | None = None) -> None:
        """Begin with new sequences."""
        if self.model is not None:
            self.model.start(prompts, source_ids)
        for source in self.sources:
            source.start(prompts, source_ids)
        self._chosen = [None] * len(prompts)

    def time_reading(self, num_tokens: int) -> float:
        """Return the seconds in which the draft model reads so many tokens of each prompt."""
        return 0.0 if self.model is None else self.model.time_reading(num_tokens)

    def propose(self, ask: Ask) -> list[list[Proposal]]:
        """Return a row's free candidates where they promise more tokens per second, else the draft model's."""
        found = [self._best(row, room, ask) for row, room in enumerate(ask.rooms)]
        if ask.lookahead.fixed is None and not (ask.limit and self.model):
            fit(found, ask)  # else the pass is as wide as the draft model makes it
        for row, line in enumerate(found):
            chosen = self._chosen[row] = self._chosen[row] if line else None
            for source in self.sources:
                source.take(row, len(line) if source is chosen else 0)
        if self.model is None:
            return found
        rooms = [0 if line else room for line, room in zip(found, ask.rooms, strict=True)]
        drafted = replace(ask, rooms=rooms).put_to(self.model)
        return [line or own for line, own in zip(found, drafted, strict=True)]

    def _best(self, row: int, room: int, ask: Ask) -> list[Proposal]:
        """Return the candidates of the source that promises most, and note which it is; none where the model does."""
        is_fixed = ask.lookahead.fixed is not None
        best: list[Proposal] = []
        self._chosen[row] = None
        if not room:
            return best
        needed = ask.lookahead.model_rate() if ask.limit and self.model is not None and not is_fixed else 0.0
        for source in self.sources:
            line, rate = source.look(row, room, ask)
            if is_fixed and line:
                rate = line[0].confidence if line[0].confidence >= _LIKELY or self.model is None else 0.0
            if rate > needed:
                best, needed, self._chosen[row] = line, rate, source
        return best

    def accept(self, row: int, num_accepted: int, output_ids: Sequence[int]) -> None:
        """Tell all sources what the target wrote."""
        chosen = self._chosen[row]
        for source in self.sources:
            source.accept(row, num_accepted if source is chosen else 0, output_ids)
        if self.model is not None:
            self.model.accept(row, num_accepted if chosen is None else 0, output_ids)
        self._chosen[row] = None

    def release(self) -> None:
        """Forget every sequence."""
        for source in self.sources:
            source.release()
        if self.model is not None:
            self.model.release()
