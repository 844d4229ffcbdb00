"""What was drafted for an engine so far."""

from dataclasses import dataclass, field, fields
from typing import Self


@dataclass
class ServingStats:
    """What was drafted so far, over all requests.

    Attributes:
        num_rounds: calls with something to draft.
        num_row_rounds: rows drafted for, summed over rounds.
        num_candidate_tokens: candidates proposed.
        num_accepted_tokens: those found again in what the target wrote.
        num_begun: rows begun.
        num_shared_tokens: draft tokens that new rows borrowed instead of reading them.
        num_parked: rows that left the batch with their cache.
        num_resumed: rows that came back with it.
        num_evicted: parked rows that were dropped to make room.
        num_left_out: rows not drafted for, because their cache would not fit.
        num_paused_rounds: calls with something to draft that drafted nothing, because it would not have paid.
        num_draft_forwards: draft passes.
        draft_s: seconds spent, projection included.
        failures: calls that ended in an error, by what it was; each proposed nothing.
    """

    num_rounds: int = 0
    num_row_rounds: int = 0
    num_candidate_tokens: int = 0
    num_accepted_tokens: int = 0
    num_begun: int = 0
    num_shared_tokens: int = 0
    num_parked: int = 0
    num_resumed: int = 0
    num_evicted: int = 0
    num_left_out: int = 0
    num_paused_rounds: int = 0
    num_draft_forwards: int = 0
    draft_s: float = 0.0
    failures: dict[str, int] = field(default_factory=dict)

    @property
    def acceptance_rate(self) -> float:
        """Accepted / proposed candidates; 0 where there were none."""
        return self.num_accepted_tokens / self.num_candidate_tokens if self.num_candidate_tokens else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Output tokens per round and row: 1 + accepted / rounds."""
        return 1.0 + self.num_accepted_tokens / self.num_row_rounds if self.num_row_rounds else 0.0

    def since(self, before: Self) -> Self:
        """Return what came after `before`; failures are counted from the start."""
        numbers = [spec.name for spec in fields(self) if spec.name != "failures"]
        differences = {name: getattr(self, name) - getattr(before, name) for name in numbers}
        return type(self)(**differences, failures=self.failures)
