"""One model on several ranks: what is decided on rank 0, and told to the others.

A target that is split over ranks (tensor parallel, pipeline parallel) computes every pass on all of them together, so
all must run the same passes. The number of candidates follows from measured times and a time limit from the clock,
which differ between ranks. So rank 0 decides: it alone drafts, and tells the others its candidates, its tokens and
whether time is up. What each rank still does for itself (processors, noise, caches) keeps its state as in plain
decoding.
"""

from collections.abc import Sequence
from typing import Any, Self, TypeVar

import torch
import torch.distributed as dist

from uag.drafting import Ask, Drafter
from uag.hf import models
from uag.proposal import Proposal

T = TypeVar("T")


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
        self._device = torch.device(device)
        self.decides = all(dist.get_rank(group) == 0 for group in self._groups)

    @classmethod
    def of(cls, model: Any) -> Self:
        """Return the ranks that run `model`."""
        groups = models.parallel_groups(model)
        return cls(groups, model.device) if groups else cls()

    def tell(self, value: T) -> T:
        """Return rank 0's value, any plain data; what the other ranks give is not looked at."""
        message = [value]
        # From rank 0 along the first group, then from each rank of that group along the next.
        for group in self._groups:
            dist.broadcast_object_list(message, dist.get_global_rank(group, 0), group, device=self._device)
        return message[0]

    def share(self, values: torch.Tensor) -> torch.Tensor:
        """Return rank 0's values: [num], whole numbers or truth values; a new tensor unless the model is on its own."""
        if not self._groups:
            return values
        return torch.tensor(self.tell(values.tolist()), dtype=values.dtype, device=values.device)

    def drafter(self, own: Drafter | None) -> Drafter:
        """Return the drafter of this rank: its own on rank 0, which must have one, elsewhere one that only listens."""
        return own if self.decides and own is not None else Listener()


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
