"""What a round offers to the target, and what the target made of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from uag.proposal import Proposal


@dataclass(frozen=True)
class Candidates:
    """The candidates of one round.

    Attributes:
        rows: places in the batch of the rows that take part.
        lines: each one's candidates.
        source: what candidates are called that bear no name of their own.
    """

    rows: Sequence[int]
    lines: Sequence[list[Proposal]]
    source: str = ""

    @property
    def width(self) -> int:
        """Tokens per row of the pass that checks them: the last known one and the longest row's candidates."""
        return 1 + max(map(len, self.lines), default=0)

    def names(self, line: Sequence[Proposal]) -> list[str]:
        """Tell of each candidate where it comes from."""
        return [proposal.source or self.source for proposal in line]


@dataclass(frozen=True)
class Outcome:
    """What became of them.

    Attributes:
        candidates: what was offered.
        num_written: tokens that each of its rows wrote: what was accepted, and the target's own token behind it.
        num_accepted: candidates of each that were accepted.
        is_first: the pass read the prompt, too.
    """

    candidates: Candidates
    num_written: list[int]
    num_accepted: list[int]
    is_first: bool

    @property
    def is_prefill(self) -> bool:
        """Whether the pass read the prompt and nothing else: its token is no round's."""
        return self.is_first and self.candidates.width == 1
