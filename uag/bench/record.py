"""The result of one arm of a benchmark on one batch."""

from dataclasses import asdict, dataclass
from typing import Any

from uag.bench.environment import describe_environment
from uag.loading import Pair


@dataclass(frozen=True)
class Record:
    """One arm on one batch of prompts; tokens and passes are counted over one call.

    Attributes:
        seconds: median of `trial_seconds`; None if the arm is not reported.
        note: why the arm's output may differ from plain decoding's; empty if it must be equal.
        difference: where an output first differs from plain decoding's, by rounding or for the reason in `note`; None
            if all outputs are equal, id for id.
        refusal: why the arm is not reported.
    """

    arm: str
    prompt_ids: tuple[str, ...]
    batch_size: int
    temperature: float
    num_prompt_tokens: int
    num_output_tokens: int = 0
    seconds: float | None = None
    trial_seconds: tuple[float, ...] = ()
    num_rounds: int = 0
    num_candidate_tokens: int = 0
    num_accepted_tokens: int = 0
    num_target_forwards: int = 0
    note: str = ""
    difference: str | None = None
    refusal: str | None = None
    stats: dict[str, Any] | None = None

    @property
    def is_reported(self) -> bool:
        """Whether the arm has figures: it ran, and its output equals plain decoding's unless it may differ."""
        return self.refusal is None

    def to_dict(self, pair: Pair) -> dict[str, Any]:
        """Return the record with pair, commit, versions, hardware and dtype, ready for one line of JSON."""
        names = {"target": pair.target_name, "draft": pair.draft_name}
        dtype = str(pair.target.dtype).removeprefix("torch.")
        return {**asdict(self), **names, "dtype": dtype, **describe_environment()}
