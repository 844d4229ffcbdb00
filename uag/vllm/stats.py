"""Statistics of drafting for an engine."""

from dataclasses import dataclass, field


@dataclass
class ServingStats:
    """Statistics since the start, over all requests.

    Attributes:
        num_rounds: calls that drafted.
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
