"""What became of a round: all that the lookahead learns from."""

from collections.abc import Sequence
from dataclasses import dataclass

from uag.proposal import Proposal

RowOutcome = tuple[Sequence[Proposal], int]
"""A row's proposals by the draft model, and how many of them were accepted."""


@dataclass(frozen=True)
class Round:
    """One round of drafting and verifying.

    Attributes:
        num_candidates: of the longest row; the target pass had one token more per row.
        draft_s: seconds of drafting, without reading the prompt; 0 where the draft model was not asked.
        target_s: seconds of the target pass.
        outcomes: of the rows that the draft model drafted for.
        prefill_s: seconds of reading the prompt with the draft; 0 where it was read before.
        is_first: the target pass read the prompt too, so its time says nothing about blocks.
        num_drafted: candidates that `draft_s` paid for, per row; None for those of the longest row.
    """

    num_candidates: int
    draft_s: float
    target_s: float
    outcomes: Sequence[RowOutcome]
    prefill_s: float = 0.0
    is_first: bool = False
    num_drafted: float | None = None
