"""One model on several ranks: what is decided on rank 0, and told to the others.

A target that is split over ranks (tensor parallel, pipeline parallel) computes every pass on all of them together, so
all must run the same passes. The number of candidates follows from measured times and a time limit from the clock,
which differ between ranks. So rank 0 decides: it alone drafts, and tells the others its candidates, its tokens and
whether time is up. What each rank still does for itself (processors, noise, caches) keeps its state as in plain
decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from uag.drafting import Ask, Drafter
from uag.hf import models
from uag.proposal import Proposal

_SIZE = 256
"""Numbers in the first message: a round of a usual batch takes one."""


class Ranks:
    """The ranks that run one model together.

    Args:
        groups: process groups that this rank is in, one for each way the model is split; empty for a model on its own.
        device: where the groups send from.

    Attributes:
        decides: whether this is rank 0 of all groups.
    """

    def __init__(self, groups: Sequence[Any] = (), device: torch.device | str = "cpu") -> None:
        self._groups = tuple(groups)
        self._device = device
        self.decides = all(dist.get_rank(group) == 0 for group in self._groups)

    @classmethod
    def of(cls, model: Any) -> Ranks:
        """Return the ranks that run `model`."""
        groups = models.parallel_groups(model)
        return cls(groups, model.device) if groups else cls()

    def tell(self, lines: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return rank 0's lists of whole numbers; what the other ranks give is not looked at."""
        if not self._groups:
            return [list(line) for line in lines]
        numbers = [number for line in lines for number in (len(line), *line)]
        # From rank 0 along the first group, then from each rank of that group along the next.
        for group in self._groups:
            numbers = self._broadcast(numbers, group)
        told, start = [], 0
        while start < len(numbers):
            end = start + 1 + numbers[start]
            told.append(numbers[start + 1 : end])
            start = end
        return told

    def agree(self, answer: bool) -> bool:
        """Return rank 0's answer."""
        return answer if not self._groups else self.tell([[int(answer)]]) == [[1]]

    def share(self, values: torch.Tensor) -> torch.Tensor:
        """Return rank 0's values: [num], whole numbers or truth values; a new tensor unless the model is on its own."""
        if not self._groups:
            return values
        (told,) = self.tell([values.tolist()])
        return torch.tensor(told, dtype=values.dtype, device=values.device)

    def _broadcast(self, numbers: list[int], group: Any) -> list[int]:
        source = dist.get_global_rank(group, 0)
        message = [len(numbers), *numbers[: _SIZE - 1]]
        first = torch.tensor(message + [0] * (_SIZE - len(message)), device=self._device)
        dist.broadcast(first, source, group=group)
        size, *found = first.tolist()
        if size < _SIZE:
            return list(found[:size])
        rest = torch.tensor((numbers[_SIZE - 1 :] + [0] * size)[: size - _SIZE + 1], device=self._device)
        dist.broadcast(rest, source, group=group)
        return [*found, *rest.tolist()]

    def drafter(self, own: Drafter | None) -> Drafter | None:
        """Return the drafter that this rank is to use: its own on rank 0, elsewhere one that only listens.

        None on every rank where rank 0 has none.
        """
        if not self.agree(own is not None):
            return None
        return own if self.decides else Listener()


class Listener(Drafter):
    """The drafter of the other ranks: it proposes nothing, for the candidates come from rank 0."""

    strategy = "rank-0"

    def start(self, prompts: Sequence[Sequence[int]], source_ids: Sequence[Sequence[int]] | None = None) -> None:
        """Do nothing."""

    def propose(self, ask: Ask) -> list[list[Proposal]]:
        """Return nothing."""
        return [[] for _ in ask.rooms]

    def accept(self, row: int, num_accepted: int, output_ids: Sequence[int]) -> None:
        """Do nothing."""

    def release(self) -> None:
        """Do nothing."""
