"""What a call did: rounds, candidates, acceptance, passes, time, and every fall-back with its reason."""

import warnings
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from uag.errors import UnsupportedError

TARGET = "target"
"""Where a token comes from that was no candidate: the target wrote it itself."""


@dataclass
class _Tally:
    num_rounds: int = 0
    num_candidate_tokens: int = 0
    num_accepted_tokens: int = 0
    num_output_tokens: int = 0
    num_output_bytes: int = 0

    @property
    def acceptance_rate(self) -> float:
        """Accepted candidates / checked candidates; 0 where there were none."""
        return self.num_accepted_tokens / self.num_candidate_tokens if self.num_candidate_tokens else 0.0


@dataclass
class RowStats(_Tally):
    """One row's part of a call.

    Attributes:
        num_rounds: rounds in which candidates of the row could be checked: none behind its end.
        num_candidate_tokens: candidates that the target checked.
        num_accepted_tokens: candidates that became output.
        num_output_tokens: tokens written, padding left out.
        num_output_bytes: bytes of text written.
        last_token_s: seconds until the row's last token was known.
    """

    last_token_s: float = 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Output tokens per round: 1 + accepted / rounds."""
        return 1.0 + self.num_accepted_tokens / self.num_rounds if self.num_rounds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return every field and derived figure as plain data."""
        derived = {name: getattr(self, name) for name in ("acceptance_rate", "mean_acceptance_length")}
        return asdict(self) | derived


@dataclass
class Stats(_Tally):
    """Statistics of one `generate` call, summed over its rows.

    Attributes:
        strategy: "cross-tokenizer", "shared-vocabulary", "prompt-lookup" or "plain"; "rank-0" where that rank drafted.
        batch_size: rows.
        num_rounds: draft-verify rounds; the target's prefill is none.
        num_draft_tokens: tokens run through the draft, in its id space, the prompt left out.
        num_candidate_tokens: candidates that the target checked, in its id space.
        num_accepted_tokens: candidates that became output.
        num_output_tokens: tokens written, padding left out.
        num_output_bytes: bytes of text written.
        num_draft_forwards: draft passes, its prefill included.
        num_target_forwards: target passes, its prefill included.
        draft_s: seconds spent drafting, projection included.
        draft_forward_s: the part of it inside draft passes.
        target_s: seconds spent in target passes; 0 for calls that transformers' own loop ran.
        first_token_s: seconds until the first output token was known.
        total_s: seconds of the decoding loop.
        candidates_by_position: candidates checked at position 1, 2, ... of a round.
        accepted_by_position: those that were accepted.
        candidates_by_source: candidates checked, by where they came from: "draft model", "prompt", "prediction",
            "source", or the name that a drafter of your own gives.
        accepted_by_source: those that became output.
        rows: each row's part.
        sources: per row and output token, where it came from: such a name, or "target" for the target's own.
        fallbacks: what could not be done as asked, each with its reason.
    """

    strategy: str = "plain"
    batch_size: int = 1
    num_draft_tokens: int = 0
    num_draft_forwards: int = 0
    num_target_forwards: int = 0
    draft_s: float = 0.0
    draft_forward_s: float = 0.0
    target_s: float = 0.0
    first_token_s: float = 0.0
    total_s: float = 0.0
    candidates_by_position: list[int] = field(default_factory=list)
    accepted_by_position: list[int] = field(default_factory=list)
    candidates_by_source: dict[str, int] = field(default_factory=dict)
    accepted_by_source: dict[str, int] = field(default_factory=dict)
    rows: list[RowStats] = field(default_factory=list, repr=False)
    sources: list[list[str]] = field(default_factory=list, repr=False)
    fallbacks: list[str] = field(default_factory=list)

    @property
    def mean_acceptance_length(self) -> float:
        """Output tokens per round and row: 1 + accepted / rounds."""
        rounds = sum(row.num_rounds for row in self.rows)
        return 1.0 + self.num_accepted_tokens / rounds if rounds else 0.0

    @property
    def origins(self) -> list[list[bool]]:
        """Per row and output token, True where it was a candidate."""
        return [[source != TARGET for source in row] for row in self.sources]

    @property
    def bytes_per_target_forward(self) -> float:
        """Bytes of text per target pass: comparable between tokenizers."""
        return self.num_output_bytes / self.num_target_forwards if self.num_target_forwards else 0.0

    @property
    def draft_forwards_per_candidate(self) -> float:
        """Draft passes / candidates of the draft model, the prompt's pass included; 0 where it made none."""
        return self._per_candidate(self.num_draft_forwards)

    @property
    def draft_tokens_per_candidate(self) -> float:
        """Draft tokens run / candidates of the draft model; 0 where it made none."""
        return self._per_candidate(self.num_draft_tokens)

    def _per_candidate(self, num: int) -> float:
        num_candidates = self.candidates_by_source.get("draft model", 0)
        return num / num_candidates if num_candidates else 0.0

    @property
    def inter_token_s(self) -> float:
        """Mean seconds between output tokens of a row, after the first."""
        going = [row for row in self.rows if row.num_output_tokens > 1]
        num = sum(row.num_output_tokens - 1 for row in going)
        return sum(row.last_token_s - self.first_token_s for row in going) / num if num else 0.0

    @property
    def overhead_s(self) -> float:
        """Seconds outside target and draft passes."""
        return self.total_s - self.target_s - self.draft_forward_s

    def start(self, batch_size: int) -> None:
        """Begin a call of so many rows."""
        self.batch_size = batch_size
        self.rows = [RowStats() for _ in range(batch_size)]

    def count_round(self, row: int, candidates: Sequence[str], num_accepted: int) -> None:
        """Add one row's part of a round; `candidates` tells of each where it came from."""
        num_candidates = len(candidates)
        for counts, names in (
            (self.candidates_by_source, candidates),
            (self.accepted_by_source, candidates[:num_accepted]),
        ):
            for name, number in Counter(names).items():
                counts[name] = counts.get(name, 0) + number
        self.rows[row].num_rounds += 1
        for tally in (self, self.rows[row]):
            tally.num_candidate_tokens += num_candidates
            tally.num_accepted_tokens += num_accepted
        while len(self.candidates_by_position) < num_candidates:
            self.candidates_by_position.append(0)
            self.accepted_by_position.append(0)
        for position in range(num_candidates):
            self.candidates_by_position[position] += 1
        for position in range(num_accepted):
            self.accepted_by_position[position] += 1

    def count_row(
        self, row: int, ids: Sequence[int], sources: list[str], table: Sequence[bytes | None], last_token_s: float
    ) -> None:
        """Add what a row wrote, at the end of the call.

        Args:
            row: its place in the batch.
            ids: target ids, padding left out.
            sources: per id, where it came from.
            table: bytes of each target id.
            last_token_s: seconds until the last of them was known.
        """
        num_bytes = sum(len(table[i] or b"") for i in ids if i < len(table))
        for tally in (self, self.rows[row]):
            tally.num_output_tokens += len(ids)
            tally.num_output_bytes += num_bytes
        self.rows[row].last_token_s = last_token_s
        self.sources.append(sources)

    def fall_back(self, reason: str) -> None:
        """Record a fall-back once."""
        if reason not in self.fallbacks:
            self.fallbacks.append(reason)

    def to_dict(self) -> dict[str, Any]:
        """Return every field and derived figure as plain data, the sources of single tokens left out."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "sources"}
        values["rows"] = [row.to_dict() for row in self.rows]
        for name in (
            "acceptance_rate",
            "mean_acceptance_length",
            "bytes_per_target_forward",
            "draft_forwards_per_candidate",
            "draft_tokens_per_candidate",
            "inter_token_s",
            "overhead_s",
        ):
            values[name] = getattr(self, name)
        return values

    def summary(self) -> str:
        """Return one line for a log."""
        speed = self.num_output_tokens / self.total_s if self.total_s else 0.0
        first_ms, next_ms = 1000 * self.first_token_s, 1000 * self.inter_token_s
        parts = [f"{self.strategy}: {self.num_output_tokens} tokens in {self.total_s:.3f} s ({speed:.1f}/s)"]
        if first_ms:
            parts.append(f"first token {first_ms:.1f} ms, then {next_ms:.2f} ms each")
        parts.append(f"{self.num_target_forwards} target passes, {self.num_draft_forwards} draft passes")
        parts.append(f"acceptance {self.acceptance_rate:.2f}")
        parts += [f"{number} from {name}" for name, number in self.accepted_by_source.items() if name != "draft model"]
        return ", ".join(parts + [f"fall-backs: {'; '.join(self.fallbacks)}"] * bool(self.fallbacks))


_last_stats: weakref.WeakKeyDictionary[Any, Stats] = weakref.WeakKeyDictionary()
_warned: set[str] = set()


def remember(model: Any, stats: Stats) -> None:
    """Keep the statistics of a target's last call, and warn of each fall-back, once per process and reason."""
    _last_stats[model] = stats
    for reason in stats.fallbacks:
        if reason not in _warned:
            _warned.add(reason)
            warnings.warn(f"uag: {reason}", UserWarning, stacklevel=5)


def last_stats(model: Any) -> Stats:
    """Return the statistics of a target's last assisted call.

    Raises:
        UnsupportedError: the model has not generated with uag.
    """
    # A wrapper (LoRA, `torch.compile`) is not what has generated: the model inside is.
    parts = model.modules() if hasattr(model, "modules") else (model,)
    found = next((known for part in parts if (known := _last_stats.get(part)) is not None), None)
    if found is None:
        raise UnsupportedError(
            f"No assisted call of this {type(model).__name__!r} is on record. Generate with uag first: "
            "uag.install(); model.generate(..., assistant_model=draft)."
        )
    return found
