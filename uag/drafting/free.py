"""Sources whose candidates cost no draft pass, and how many of those a pass should carry."""

from collections.abc import Sequence
from typing import Protocol

from uag.drafting.drafter import Ask, Drafter
from uag.proposal import Proposal


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
