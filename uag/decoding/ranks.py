"""Ranks that run one model together: rank 0 decides and broadcasts its decisions.

Candidates depend on measured times, and a time limit on the clock, which differ between ranks.
"""

from typing import Any, Self, TypeVar

import torch
import torch.distributed as dist

from uag.drafting import Ask, Drafter
from uag.hf import models
from uag.proposal import Proposal

T = TypeVar("T")


class Ranks:
    """The ranks of a process group (None: a single rank); `decides` tells whether this is rank 0 of the group."""

    def __init__(self, group: Any = None, device: torch.device | str = "cpu") -> None:
        self._group = group
        self._device = torch.device(device)
        self.decides = group is None or dist.get_rank(group) == 0

    @classmethod
    def of(cls, model: Any) -> Self:
        group = models.tensor_parallel_group(model)
        return cls() if group is None else cls(group, model.device)

    def broadcast(self, value: T) -> T:
        """Return rank 0's value, which must be plain data; other ranks' values are ignored."""
        if self._group is None:
            return value
        message = [value]
        dist.broadcast_object_list(message, dist.get_global_rank(self._group, 0), self._group, device=self._device)
        return message[0]

    def broadcast_tensor(self, values: torch.Tensor) -> torch.Tensor:
        """Return rank 0's tensor: [num] integers or booleans."""
        if self._group is None:
            return values
        return torch.tensor(self.broadcast(values.tolist()), dtype=values.dtype, device=values.device)

    def drafter(self, local: Drafter | None) -> Drafter:
        """Return the local drafter on rank 0, and one that proposes nothing on other ranks, or if there is none."""
        return local if self.decides and local is not None else _Silent("plain" if self.decides else "rank-0")


class _Silent(Drafter):
    """Proposes nothing: on ranks other than 0, which get rank 0's candidates, and in calls without a draft."""

    draws = False

    def __init__(self, strategy: str) -> None:
        self.strategy = strategy

    def propose(self, ask: Ask) -> list[list[Proposal]]:
        return [[] for _ in ask.budgets]
