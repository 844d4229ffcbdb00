"""Free sources, whose candidates need no draft pass, and the choice between them and the draft model."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from uag.drafting.drafter import Ask, Counts, Drafter
from uag.proposal import Proposal, num_equal

_PRIOR_WEIGHT, _FADING = 4.0, 0.98  # of a prior, in checked candidates; of one, relative to the next
_MAX_PROPOSED = 64  # free candidates of a row, at most
_LIKELY = 0.5  # confidence in a free source's first candidate from which it is used with a fixed number of candidates


class AcceptanceRates:
    """Acceptance rates by level of evidence, kept between calls. `priors` are the initial rates."""

    def __init__(self, priors: Sequence[float]) -> None:
        self._priors = priors
        self._counts = [(0.0, 0.0) for _ in priors]  # accepted and checked candidates; older ones count less

    def __getitem__(self, level: int) -> float:
        """Return the predicted acceptance rate of candidates with this evidence."""
        accepted, checked = self._counts[level]
        return (accepted + _PRIOR_WEIGHT * self._priors[level]) / (checked + _PRIOR_WEIGHT)

    def learn(self, levels: Sequence[int], num_accepted: int) -> None:
        """Learn from a round's checked candidates: the accepted ones and the first rejected one."""
        for index, level in enumerate(levels[: num_accepted + 1]):
            accepted, checked = self._counts[level]
            self._counts[level] = _FADING * accepted + (index < num_accepted), _FADING * checked + 1.0


class FreeSource(Drafter, ABC):
    """A source whose candidates for a row can be inspected before they are proposed; `FreeFirst` makes it a drafter."""

    draws = False

    def __init__(self, rates: AcceptanceRates) -> None:
        self._rates = rates
        self._shown: dict[int, tuple[list[int], list[int]]] = {}

    @abstractmethod
    def _candidates(self, row: int, num: int, ask: Ask) -> tuple[list[int], list[int]]:
        """Return up to `num` candidates of a row, and the level of evidence of each if those before it are accepted."""

    @abstractmethod
    def _written(self, row: int, output_ids: Sequence[int], num_right: int) -> None:
        """Append the target's output to a row; it matches the first `num_right` of the last candidates."""

    def look(self, row: int, budget: int, ask: Ask) -> tuple[list[Proposal], float]:
        """Return a row's candidates, as many as would pay for a single row, and their expected tokens per second.

        With a fixed number of candidates, return that many, and the confidence in the first one.
        """
        is_fixed = ask.lookahead.fixed is not None
        ids, levels = self._candidates(row, min(budget, ask.limit if is_fixed else _MAX_PROPOSED), ask)
        self._shown[row] = ids, levels
        rates = [self._rates[level] for level in levels]
        size, rate = (len(ids), max(rates[:1], default=0.0)) if is_fixed else ask.lookahead.best_common([rates])
        pairs = zip(ids[:size], rates, strict=False)
        return [Proposal(token_id, chance, is_free=True, source=self.source) for token_id, chance in pairs], rate

    def propose(self, ask: Ask) -> list[list[Proposal]]:
        return FreeFirst(None, [self]).propose(ask)

    def accept(self, row: int, num_accepted: int, output_ids: Sequence[int]) -> None:  # noqa: ARG002
        """Learn how many of the candidates match the target's output, even if they were not proposed."""
        ids, levels = self._shown.pop(row, ([], []))
        num_right = num_equal(ids, output_ids)
        self._rates.learn(levels[: len(output_ids)], num_right)
        self._written(row, output_ids, num_right)

    def release(self) -> None:
        self._shown.clear()


class FreeFirst(Drafter):
    """Several sources, of which each row uses the best one in each round; only `model` may take time."""

    def __init__(self, model: Drafter | None, sources: Sequence[FreeSource]) -> None:
        self._model, self._sources = model, sources
        self._drafters: list[Drafter] = [*sources] if model is None else [model, *sources]
        main = self._drafters[0]
        self.strategy, self.source, self.draws = main.strategy, main.source, main.draws
        self.reads_prompts = main.reads_prompts
        self._is_free: list[bool] = []

    @property
    def counts(self) -> Counts:
        return self._drafters[0].counts

    def start(self, prompts: Sequence[Sequence[int]], source_ids: Sequence[Sequence[int]] | None = None) -> None:
        for drafter in self._drafters:
            drafter.start(prompts, source_ids)
        self._is_free = [False] * len(prompts)

    def propose(self, ask: Ask) -> list[list[Proposal]]:
        """Return each row's free candidates if they promise more tokens per second, else the draft model's."""
        lines = [self._best(row, budget, ask) if budget else [] for row, budget in enumerate(ask.budgets)]
        if ask.lookahead.fixed is None and not (ask.limit and self._model):
            # A pass is as wide as its longest row, which the draft model determines if it drafts.
            rates = [[p.confidence for p in line] for line, budget in zip(lines, ask.budgets, strict=True) if budget]
            size, _ = ask.lookahead.best_common(rates)
            lines = [line[:size] for line in lines]
        self._is_free = [bool(line) for line in lines]
        if self._model is None or not (ask.limit or self._model.has_free):
            return lines
        budgets = [0 if line else budget for line, budget in zip(lines, ask.budgets, strict=True)]
        drafted = replace(ask, budgets=budgets).put_to(self._model)
        return [line or of_model for line, of_model in zip(lines, drafted, strict=True)]

    def _best(self, row: int, budget: int, ask: Ask) -> list[Proposal]:
        """Return the candidates of the best free source, or none if the draft model is better."""
        best, needed = list[Proposal](), 0.0
        if self._model is not None and ask.limit:
            needed = ask.lookahead.model_rate() if ask.lookahead.fixed is None else _LIKELY
        for source in self._sources:
            line, rate = source.look(row, budget, ask)
            if rate > needed:
                best, needed = line, rate
        return best

    def accept(self, row: int, num_accepted: int, output_ids: Sequence[int]) -> None:
        for drafter in self._drafters:
            drafter.accept(row, 0 if self._is_free[row] else num_accepted, output_ids)
        self._is_free[row] = False

    def finish(self, outputs: Sequence[Sequence[int]]) -> None:
        for drafter in self._drafters:
            drafter.finish(outputs)

    def release(self) -> None:
        for drafter in self._drafters:
            drafter.release()
