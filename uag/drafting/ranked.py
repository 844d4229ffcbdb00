"""Sources whose candidates cost no draft pass, and the choice between them and the draft model."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Self

from uag.drafting.drafter import Ask, Counts, Drafter
from uag.drafting.rates import AcceptanceRates, Evidence
from uag.proposal import Proposal

_LIKELY = 0.5
"""With a fixed length, a free source is used if its first candidate is at least this likely. Increase to run the draft
model more often."""


class FreeSource(Drafter, ABC):
    """A source that first shows what it could offer for each row; it may also be the only drafter.

    Args:
        rates: acceptance rates; learns from all calls.

    Attributes:
        max_proposed: candidates at most. Increase to save passes in long texts that are right; decrease to narrow
            passes that are rejected early.
    """

    max_proposed: ClassVar[int]

    def __init__(self, rates: AcceptanceRates) -> None:
        self._rates = rates
        self._shown: dict[int, tuple[list[int], list[Evidence]]] = {}

    @abstractmethod
    def _candidates(self, row: int, num: int) -> tuple[list[int], list[Evidence]]:
        """Return up to `num` candidates of a row and the evidence for each, given that those before it are accepted."""

    def look(self, row: int, room: int, ask: Ask) -> tuple[list[Proposal], float]:
        """Return a row's candidates, as many as pay if it is the only row, and their expected tokens per second."""
        is_fixed = ask.lookahead.fixed is not None
        ids, evidence = self._candidates(row, min(room, ask.limit if is_fixed else self.max_proposed))
        self._shown[row] = ids, evidence
        rates = [self._rates[each] for each in evidence]
        size, rate = ask.lookahead.best_common([rates])
        pairs = list(zip(ids, rates, strict=True))[: len(ids) if is_fixed else size]
        return [Proposal(token_id, chance, is_free=True, source=self.source) for token_id, chance in pairs], rate

    def propose(self, ask: Ask) -> list[list[Proposal]]:
        """Return the candidates of each row, as many as pay."""
        lines = [self.look(row, room, ask)[0] for row, room in enumerate(ask.rooms)]
        if ask.lookahead.fixed is None:
            fit(lines, ask)
        return lines

    def accept(self, row: int, num_accepted: int, output_ids: Sequence[int]) -> None:  # noqa: ARG002
        """Learn how many of the candidates the target wrote, whether they were offered to it or not."""
        ids, evidence = self._shown.pop(row, ([], []))
        pairs = list(zip(ids, output_ids, strict=False))
        num_right = next((n for n, (token_id, written) in enumerate(pairs) if token_id != written), len(pairs))
        self._rates.learn(evidence[: len(pairs)], num_right)
        self._written(row, output_ids, num_right)

    @abstractmethod
    def _written(self, row: int, output_ids: Sequence[int], num_right: int) -> None:
        """Add what the target wrote to a row; `num_right` of the last candidates were the same."""

    def release(self) -> None:
        """Forget every sequence."""
        self._shown.clear()


def fit(lines: Sequence[list[Proposal]], ask: Ask) -> None:
    """Cut all rows' candidates to the number that pays for them together: a pass is as wide as its longest row."""
    rates = [[p.confidence for p in line] for line, room in zip(lines, ask.rooms, strict=True) if room]
    size, _ = ask.lookahead.best_common(rates)
    for line in lines:
        del line[size:]


class FreeFirst(Drafter):
    """Several sources of candidates, the best one for each row and round.

    Args:
        model: the draft model's drafter, or another that takes time; None where there is none.
        sources: free ones; the first wins a tie.

    Attributes:
        model, sources: as given.
    """

    def __init__(self, model: Drafter | None, sources: Sequence[FreeSource]) -> None:
        self.model = model
        self.sources = list(sources)
        main = self.sources[0] if model is None else model
        self.strategy, self.source = main.strategy, main.source
        self._is_free: list[bool] = []

    def with_first(self, source: FreeSource) -> Self:
        """Return one with another source before these."""
        return type(self)(self.model, [source, *self.sources])

    @property
    def _drafters(self) -> list[Drafter]:
        return [*self.sources] if self.model is None else [self.model, *self.sources]

    @property
    def counts(self) -> Counts:
        """What the draft model has done so far."""
        return Counts() if self.model is None else self.model.counts

    def start(self, prompts: Sequence[Sequence[int]], source_ids: Sequence[Sequence[int]] | None = None) -> None:
        """Begin with new sequences."""
        for drafter in self._drafters:
            drafter.start(prompts, source_ids)
        self._is_free = [False] * len(prompts)

    def time_reading(self, num_tokens: int) -> float:
        """Return the seconds in which the draft model reads so many tokens of each prompt."""
        return 0.0 if self.model is None else self.model.time_reading(num_tokens)

    def propose(self, ask: Ask) -> list[list[Proposal]]:
        """Return a row's free candidates where they promise more tokens per second, else the draft model's."""
        lines = [self._best(row, room, ask) for row, room in enumerate(ask.rooms)]
        if ask.lookahead.fixed is None and not (ask.limit and self.model):
            fit(lines, ask)  # else the pass is as wide as the draft model makes it
        self._is_free = [bool(line) for line in lines]
        if self.model is None:
            return lines
        rooms = [0 if line else room for line, room in zip(lines, ask.rooms, strict=True)]
        drafted = replace(ask, rooms=rooms).put_to(self.model)
        return [line or of_model for line, of_model in zip(lines, drafted, strict=True)]

    def _best(self, row: int, room: int, ask: Ask) -> list[Proposal]:
        """Return the candidates of the best free source; none where the draft model is better."""
        is_fixed = ask.lookahead.fixed is not None
        best: list[Proposal] = []
        if not room:
            return best
        needed = ask.lookahead.model_rate() if ask.limit and self.model is not None and not is_fixed else 0.0
        for source in self.sources:
            line, rate = source.look(row, room, ask)
            if is_fixed and line:
                rate = line[0].confidence if line[0].confidence >= _LIKELY or self.model is None else 0.0
            if rate > needed:
                best, needed = line, rate
        return best

    def accept(self, row: int, num_accepted: int, output_ids: Sequence[int]) -> None:
        """Tell all sources what the target wrote."""
        for source in self.sources:
            source.accept(row, num_accepted, output_ids)
        if self.model is not None:
            self.model.accept(row, 0 if self._is_free[row] else num_accepted, output_ids)
        self._is_free[row] = False

    def release(self) -> None:
        """Forget every sequence."""
        for drafter in self._drafters:
            drafter.release()
