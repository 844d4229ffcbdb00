"""Statistics of drafting for an engine."""

from dataclasses import dataclass, field, fields
from typing import Self


@dataclass
class ServingStats:
    """Statistics since the start, over all requests.

    Attributes:
        num_rounds: calls that drafted.
        num_row_rounds: rows drafted for, summed over rounds.
        num_paused_rounds: calls that drafted nothing because it would not have paid.
        num_candidate_tokens: candidates proposed.
        num_accepted_tokens: candidates that the target accepted, as seen in the next contexts.
        num_begun: rows created.
        num_shared_tokens: draft tokens whose cache new rows copied from another row instead of reading them.
        num_evicted: parked rows that were dropped to free cache slots.
        num_left_out: rows that were not drafted for because the cache was too small.
        num_draft_forwards: draft passes.
        draft_s: seconds spent, projection included.
        failures: number of calls that raised an error, by the error's class; each proposed nothing.
    """

    num_rounds: int = 0
    num_row_rounds: int = 0
    num_paused_rounds: int = 0
    num_candidate_tokens: int = 0
    num_accepted_tokens: int = 0
    num_begun: int = 0
    num_shared_tokens: int = 0
    num_evicted: int = 0
    num_left_out: int = 0
    num_draft_forwards: int = 0
    draft_s: float = 0.0
    failures: dict[str, int] = field(default_factory=dict)

    @property
    def acceptance_rate(self) -> float:
        """Accepted / proposed candidates; 0 if there were none."""
        return self.num_accepted_tokens / max(self.num_candidate_tokens, 1)

    @property
    def mean_acceptance_length(self) -> float:
        """Output tokens per round and row: 1 + accepted / rounds; 1 if there were none."""
        return 1.0 + self.num_accepted_tokens / max(self.num_row_rounds, 1)

    def since(self, before: Self) -> Self:
        """Return the difference to `before`; failures are counted from the start."""
        numbers = [spec.name for spec in fields(self) if spec.name != "failures"]
        differences = {name: getattr(self, name) - getattr(before, name) for name in numbers}
        return type(self)(**differences, failures=self.failures)
