"""What a benchmark found out about one arm on one prompt."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from uag.bench.environment import describe_environment
from uag.loading import Pair


@dataclass(frozen=True)
class Record:
    """One arm on one prompt (with a batch: on one group of prompts); tokens and passes are those of one call.

    `seconds` is the median of `trial_seconds`, None where the arm is not reported: `refusal` says why. `rounding` tells
    of the first difference that is the target's own rounding, None where the outputs are equal id for id.
    """

    arm: str
    prompt_ids: tuple[str, ...]
    categories: tuple[str | None, ...]
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
    rounding: str | None = None
    refusal: str | None = None
    stats: dict[str, Any] | None = None

    @property
    def is_reported(self) -> bool:
        """Whether the arm wrote what plain decoding writes and was therefore timed."""
        return self.refusal is None

    def to_dict(self, pair: Pair) -> dict[str, Any]:
        """Return the record with pair, commit, versions, hardware and dtype, ready for one line of JSON."""
        names = {"target": pair.target_name, "draft": pair.draft_name}
        dtype = str(pair.target.dtype).removeprefix("torch.")
        return {**asdict(self), **names, "dtype": dtype, **describe_environment()}

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Self:
        """Return the record of a row that `to_dict` made, also where it comes from JSON."""
        found = {item.name: row[item.name] for item in fields(cls)}
        for name in ("prompt_ids", "categories", "trial_seconds"):
            found[name] = tuple(found[name])
        return cls(**found)
