"""To be described."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from uag.drafting.rows import Row
from uag.proposal import Proposal
from uag.vllm.open_draft import RowCache

IdArray = npt.NDArray[np.integer[Any]]

NO_ID = (1 << 31) - 1
"""Stands for ids below zero, which no vocabulary has."""


@dataclass(eq=False)
class RequestRow:
    """One request's row.

    Attributes:
        row: the row.
        ids: target ids at its last round.
        place: its place in the batch, None where it is parked or new.
        cache: what was saved of it, None in the batch.
        proposals: of its last round.
        reach: probability that all of them are accepted.
        last_round: number of that round.
    """

    row: Row
    ids: IdArray
    place: int | None = None
    cache: RowCache | None = None
    proposals: list[Proposal] = field(default_factory=list)
    reach: float = 1.0
    last_round: int = 0

    def begins(self, ids: IdArray) -> bool:
        """Whether `ids` go on from this row's."""
        size = self.ids.size
        return size <= ids.size and self.ids[-1] == ids[size - 1] and bool((self.ids == ids[:size]).all())


def num_common(first: IdArray, second: IdArray) -> int:
    """Count the ids that two sequences begin with in common."""
    size = min(first.size, second.size)
    differ = np.flatnonzero(first[:size] != second[:size])
    return int(differ[0]) if differ.size else size
