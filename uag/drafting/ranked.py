"""Sources whose candidates cost no draft pass, and the choice between them and the draft model."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, Self

from uag.drafting.drafter import Ask, Counts, Drafter
from uag.proposal import Proposal

_LIKELY = 0.5
"""Where the length is fixed, a free source goes first if its first candidate is as likely: higher asks the draft model
more often."""


class FreeSource(Drafter, Protocol):
    """A source that says for each row what it could offer, and what that promises; it may serve alone, too."""

    def look(self, row: int, room: int, ask: Ask) -> tuple[list[Proposal], float]:
        """Return a row's candidates, as many as pay for it alone, and their expected tokens per second."""
        ...

    def take(self, row: int, size: int) -> None:
        """Note how many of the candidates that `look` returned are offered to the target; 0 where none are."""
        ...

    def propose(self, ask: Ask) -> list[list[Proposal]]:
        """Return the candidates of each row, as many as pay."""
        found = [self.look(row, room, ask)[0] for row, room in enumerate(ask.rooms)]
        if ask.lookahead.fixed is None:
            fit(found, ask)
        for row, line in enumerate(found):
            self.take(row, len(line))
        return found


def fit(found: Sequence[list[Proposal]], ask: Ask) -> None:
    """Cut all rows' candidates to the number that pays for them together: the longest row's pass is every row's."""
    rates = [[p.confidence for p in line] for line, room in zip(found, ask.rooms, strict=True) if room]
    size, _ = ask.lookahead.best_common(rates)
    for line in found:
        del line[size:]


def choose(ids: Sequence[int], rates: Sequence[float], source: str, ask: Ask) -> tuple[list[Proposal], float]:
    """Return as many candidates of one row as pay, and their expected tokens per second.

    Args:
        ids: the candidates.
        rates: predicted acceptance of each, given those before it.
        source: their name in the statistics.
        ask: what is asked for; where the length is fixed, it is the length.
    """
    size, rate = ask.lookahead.best_common([rates])
    if ask.lookahead.fixed is not None:
        size = min(len(ids), ask.limit)
    pairs = zip(ids[:size], rates[:size], strict=True)
    return [Proposal(token_id, chance, is_free=True, source=source) for token_id, chance in pairs], rate


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
