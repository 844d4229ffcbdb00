"""Free sources, whose candidates need no draft pass, and the choice between them and the draft model."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from uag.drafting.drafter import Ask, Counts, Drafter
from uag.drafting.rates import AcceptanceRates, Evidence
from uag.proposal import Proposal

_LIKELY = 0.5
"""Minimum confidence in a free source's first candidate with a fixed length. Increase to run the draft model more
often; decrease to use free sources more often."""


class FreeSource(Drafter, ABC):
    """A source whose candidates for a row can be inspected before they are proposed; it may also be the only drafter.

    Args:
        rates: acceptance rates, learned over all calls.

    Attributes:
        max_proposed: maximum number of candidates. Increase to save passes in long correct texts; decrease to narrow
            passes whose candidates are rejected early.
    """

    max_proposed: ClassVar[int]
    draws = False

    def __init__(self, rates: AcceptanceRates) -> None:
        self._rates = rates
        self._shown: dict[int, tuple[list[int], list[Evidence]]] = {}

    @abstractmethod
    def _candidates(self, row: int, num: int, ask: Ask) -> tuple[list[int], list[Evidence]]:
        """Return up to `num` candidates of a row, and each one's evidence if those before it are accepted."""

    def look(self, row: int, budget: int, ask: Ask) -> tuple[list[Proposal], float]:
        """Return a row's candidates, as many as would pay for a single row, and their expected tokens per second."""
        is_fixed = ask.lookahead.fixed is not None
        ids, evidence = self._candidates(row, min(budget, ask.limit if is_fixed else self.max_proposed), ask)
        self._shown[row] = ids, evidence
        rate_of = {each: self._rates[each] for each in set(evidence)}
        rates = [rate_of[each] for each in evidence]
        size, rate = ask.lookahead.best_common([rates])
        pairs = list(zip(ids, rates, strict=True))[: len(ids) if is_fixed else size]
        proposals = [Proposal(token_id, chance, is_free=True, source=self.source) for token_id, chance in pairs]
        return proposals, rate

    def propose(self, ask: Ask) -> list[list[Proposal]]:
        """Return as many candidates for each row as pay."""
        return FreeFirst(None, [self]).propose(ask)

    def accept(self, row: int, num_accepted: int, output_ids: Sequence[int]) -> None:  # noqa: ARG002
        """Learn how many of the candidates match the target's output, even if they were not proposed."""
        ids, evidence = self._shown.pop(row, ([], []))
        pairs = list(zip(ids, output_ids, strict=False))
        num_right = next((n for n, (token_id, written) in enumerate(pairs) if token_id != written), len(pairs))
        self._rates.learn(evidence[: len(pairs)], num_right)
        self._written(row, output_ids, num_right)

    @abstractmethod
    def _written(self, row: int, output_ids: Sequence[int], num_right: int) -> None:
        """Append the target's output to a row; it matches the first `num_right` of the last candidates."""

    def release(self) -> None:
        """Drop all sequences."""
        self._shown.clear()


class FreeFirst(Drafter):
    """Several sources of candidates, of which each row uses the best one in each round.

    Args:
        model: the draft model's drafter, or another that takes time; None if there is none.
        sources: free sources; the first wins a tie.

    Attributes:
        model, sources: the arguments.
    """

    def __init__(self, model: Drafter | None, sources: Sequence[FreeSource]) -> None:
        self.model = model
        self.sources = list(sources)
        main = self.sources[0] if model is None else model
        self.strategy, self.source = main.strategy, main.source
        self.draws = model is not None and model.draws
        self._is_free: list[bool] = []

    @property
    def _drafters(self) -> list[Drafter]:
        return [*self.sources] if self.model is None else [self.model, *self.sources]

    @property
    def counts(self) -> Counts:
        """The draft model's counts so far."""
        return Counts() if self.model is None else self.model.counts

    def start(self, prompts: Sequence[Sequence[int]], source_ids: Sequence[Sequence[int]] | None = None) -> None:
        """Start new sequences."""
        for drafter in self._drafters:
            drafter.start(prompts, source_ids)
        self._is_free = [False] * len(prompts)

    def time_reading(self, num_tokens: int) -> float:
        """Return the seconds that the draft model takes to read `num_tokens` of each prompt."""
        return 0.0 if self.model is None else self.model.time_reading(num_tokens)

    def propose(self, ask: Ask) -> list[list[Proposal]]:
        """Return each row's free candidates if they promise more tokens per second, else the draft model's."""
        lines = [self._best(row, budget, ask) for row, budget in enumerate(ask.budgets)]
        if ask.lookahead.fixed is None and not (ask.limit and self.model):
            # A pass is as wide as its longest row, which the draft model determines if it drafts.
            rates = [[p.confidence for p in line] for line, budget in zip(lines, ask.budgets, strict=True) if budget]
            size, _ = ask.lookahead.best_common(rates)
            lines = [line[:size] for line in lines]
        self._is_free = [bool(line) for line in lines]
        if self.model is None:
            return lines
        budgets = [0 if line else budget for line, budget in zip(lines, ask.budgets, strict=True)]
        drafted = replace(ask, budgets=budgets).put_to(self.model)
        return [line or of_model for line, of_model in zip(lines, drafted, strict=True)]

    def _best(self, row: int, budget: int, ask: Ask) -> list[Proposal]:
        """Return the candidates of the best free source, or none if the draft model is better."""
        is_fixed = ask.lookahead.fixed is not None
        best: list[Proposal] = []
        if not budget:
            return best
        needed = ask.lookahead.model_rate() if ask.limit and self.model is not None and not is_fixed else 0.0
        for source in self.sources:
            line, rate = source.look(row, budget, ask)
            if is_fixed and line:
                rate = line[0].confidence if line[0].confidence >= _LIKELY or self.model is None else 0.0
            if rate > needed:
                best, needed = line, rate
        return best

    def accept(self, row: int, num_accepted: int, output_ids: Sequence[int]) -> None:
        """Pass the target's output to all sources."""
        for source in self.sources:
            source.accept(row, num_accepted, output_ids)
        if self.model is not None:
            self.model.accept(row, 0 if self._is_free[row] else num_accepted, output_ids)
        self._is_free[row] = False

    def finish(self, outputs: Sequence[Sequence[int]]) -> None:
        """Pass the complete outputs to all sources."""
        for drafter in self._drafters:
            drafter.finish(outputs)

    def release(self) -> None:
        """Drop all sequences."""
        for drafter in self._drafters:
            drafter.release()
