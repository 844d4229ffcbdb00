"""Statistics of a call: rounds, candidates, acceptance, passes, time, and every fall-back with its reason."""

import logging
import warnings
import weakref
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from uag import forks
from uag.errors import UnsupportedError

logger = logging.getLogger("uag")

TARGET = "target"  # the source of a token that was not a candidate: the target generated it itself


@dataclass
class RowStats:
    """Statistics of one row; fields as in `Stats`. `num_rounds` counts the rounds before the row ended."""

    num_rounds: int = 0
    num_candidate_tokens: int = 0
    num_accepted_tokens: int = 0
    num_output_tokens: int = 0

    @property
    def acceptance_rate(self) -> float:
        """Accepted candidates / checked candidates; 0 without candidates."""
        return _ratio(self.num_accepted_tokens, self.num_candidate_tokens)


@dataclass
class Stats(RowStats):
    """Statistics of one `generate` call, summed over its rows.

    Attributes:
        strategy: "cross-tokenizer", "shared-vocabulary", "prompt-lookup", "memory" or "plain"; "rank-0" where that rank
            drafted.
        batch_size: rows.
        num_rounds: draft-verify rounds, without the target's prefill.
        num_draft_tokens: draft tokens run through the draft, without the prompt.
        num_candidate_tokens: candidates (target tokens) that the target checked.
        num_accepted_tokens: candidates that became output.
        num_output_tokens: tokens generated, without padding.
        num_draft_forwards: draft passes, including its prefill.
        num_target_forwards: target passes, including its prefill.
        draft_s: seconds spent drafting, including the projection; on Linux, this and the next three leave out the time
            in which this thread waited for a free core.
        draft_forward_s: seconds of draft_s spent in draft passes.
        recording_s: seconds of draft_s spent in draft passes that were recorded or compiled.
        target_s: seconds spent in target passes; 0 for calls that transformers' own loop ran.
        compile_s: seconds of target_s spent in passes that compiled a graph.
        pass_seconds: seconds of each other target pass after the prompt, by its tokens per row.
        first_token_s: seconds until the first output token was known.
        waited_s: seconds for which this thread waited for a free core, on Linux; 0 elsewhere, and for calls that
            transformers' own loop ran.
        total_s: seconds of the decoding loop.
        candidates_by_source: candidates checked, by source: "draft model", "prompt", "prediction", "source", or the
            name that a custom drafter gives.
        accepted_by_source: candidates that became output, by source.
        rows: statistics of each row.
        sources: the source of each output token, by row; "target" for a token that was not a candidate.
        dtypes: dtypes of the target and the draft if they differ; empty otherwise, and for a GGUF file.
        draft_passes: how the draft's passes run, and why not in one call of the kernels; empty without a draft.
        not_drafting: why less than half of the rounds were allowed to use draft passes, or why no source proposed a
            candidate; empty otherwise.
        is_draft_independent: whether the output is, bit for bit, what the same call gives with any other draft, or
            without one (see docs/support.md).
        draft_dependence: why it may not be; empty if it is.
        fallbacks: why the call, or a part of it, fell back.
    """

    strategy: str = "plain"
    batch_size: int = 1
    num_draft_tokens: int = 0
    num_draft_forwards: int = 0
    num_target_forwards: int = 0
    draft_s: float = 0.0
    draft_forward_s: float = 0.0
    recording_s: float = 0.0
    target_s: float = 0.0
    compile_s: float = 0.0
    pass_seconds: dict[int, list[float]] = field(default_factory=dict, repr=False)
    first_token_s: float = 0.0
    waited_s: float = 0.0
    total_s: float = 0.0
    candidates_by_source: dict[str, int] = field(default_factory=dict)
    accepted_by_source: dict[str, int] = field(default_factory=dict)
    rows: list[RowStats] = field(default_factory=list, repr=False)
    sources: list[list[str]] = field(default_factory=list, repr=False)
    dtypes: str = ""
    draft_passes: str = ""
    not_drafting: str = ""
    is_draft_independent: bool = False
    draft_dependence: str = ""
    fallbacks: list[str] = field(default_factory=list)

    @property
    def mean_acceptance_length(self) -> float:
        """Output tokens per round and row: 1 + accepted / rounds."""
        rounds = sum(row.num_rounds for row in self.rows)
        return 1.0 + _ratio(self.num_accepted_tokens, rounds) if rounds else 0.0

    @property
    def inter_token_s(self) -> float:
        """Mean seconds between the output tokens of the longest row, after the first."""
        num_tokens = max((row.num_output_tokens for row in self.rows), default=0)
        return _ratio(self.total_s - self.first_token_s, max(num_tokens - 1, 0))

    def start(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self.rows = [RowStats() for _ in range(batch_size)]

    def count_round(self, row: int, candidates: Sequence[str], num_accepted: int) -> None:
        """Add one row of a round; `candidates` are the sources of its candidates."""
        self.rows[row].num_rounds += 1
        for tally in (self, self.rows[row]):
            tally.num_candidate_tokens += len(candidates)
            tally.num_accepted_tokens += num_accepted
        for counts, sources in (
            (self.candidates_by_source, candidates),
            (self.accepted_by_source, candidates[:num_accepted]),
        ):
            for source in sources:
                counts[source] = counts.get(source, 0) + 1

    def count_row(self, row: int, sources: list[str]) -> None:
        """Add the output of a row, at the end of the call: the source of each token, without padding."""
        for tally in (self, self.rows[row]):
            tally.num_output_tokens += len(sources)
        self.sources.append(sources)

    def fall_back(self, reason: str) -> None:
        """Record a fall-back, unless it is already recorded."""
        if reason not in self.fallbacks:
            self.fallbacks.append(reason)

    def to_dict(self) -> dict[str, Any]:
        """Return every field and property as plain data, without the sources of single tokens."""
        names = ("acceptance_rate", "mean_acceptance_length", "inter_token_s")
        values = asdict(self) | {name: getattr(self, name) for name in names}
        del values["sources"]
        return values

    def __str__(self) -> str:
        """Return tokens and speed, acceptance, times, sources, fall-backs, and `dtypes` and `not_drafting` if set."""
        return "\n".join(self._lines())

    def summary(self) -> str:
        """Return one line for logging."""
        return "; ".join(self._lines())

    def _lines(self) -> list[str]:
        speed = _ratio(self.num_output_tokens, self.total_s)
        latency = f"first token {1000 * self.first_token_s:.1f} ms, then {1000 * self.inter_token_s:.2f} ms each"
        time = f"{self.num_target_forwards} target passes in transformers' own loop"
        if self.target_s:
            other_s = self.total_s - self.target_s - self.draft_s - self.waited_s
            recording = f" ({self.recording_s:.3f} s of it recording)" if self.recording_s else ""
            time = (
                f"{self.num_target_forwards} target passes {self.target_s:.3f} s, drafting with "
                f"{self.num_draft_forwards} draft passes {self.draft_s:.3f} s{recording}, other {other_s:.3f} s"
            )
        if self.waited_s > 0.01 * self.total_s:
            time += f", waiting for a free core {self.waited_s:.3f} s"
        sources = [
            f"{self.accepted_by_source.get(source, 0)} of {count} from {source}"
            for source, count in self.candidates_by_source.items()
        ]
        return [
            f"{self.strategy}: {self.num_output_tokens} tokens in {self.total_s:.3f} s ({speed:.1f}/s), {latency}",
            f"acceptance {self.acceptance_rate:.0%}: "
            f"{self.num_accepted_tokens} of {self.num_candidate_tokens} candidates",
            f"time: {time}",
            f"accepted: {', '.join(sources) or 'no candidates'}",
            *(["draft-independent: yes, bit for bit"] if self.is_draft_independent else ()),
            *([f"draft-independent: not certain, since {self.draft_dependence}"] if self.draft_dependence else ()),
            f"fall-backs: {'; '.join(self.fallbacks) or 'none'}",
            *([f"dtypes: {self.dtypes}"] if self.dtypes else ()),
            *([f"not drafting: {self.not_drafting}"] if self.not_drafting else ()),
        ]


@dataclass
class Totals(RowStats):
    """Sums over the calls of an assistant, and the number of calls with a fall-back."""

    num_calls: int = 0
    num_fallbacks: int = 0
    total_s: float = 0.0

    def add(self, stats: Stats) -> None:
        with _lock:
            self.num_calls += 1
            self.num_fallbacks += bool(stats.fallbacks)
            for name in (*RowStats.__dataclass_fields__, "total_s"):
                setattr(self, name, getattr(self, name) + getattr(stats, name))

    def to_dict(self) -> dict[str, Any]:
        """Return the sums, the tokens per second and the acceptance rate as plain data."""
        speed = _ratio(self.num_output_tokens, self.total_s)
        return asdict(self) | {"tokens_per_second": speed, "acceptance_rate": self.acceptance_rate}


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


_lock = forks.lock()
_last_stats: weakref.WeakKeyDictionary[Any, Stats] = weakref.WeakKeyDictionary()
_warned: set[str] = set()


def remember(model: Any, stats: Stats) -> None:
    """Store the statistics of a target's last call, and warn about each new fall-back reason once per process."""
    _last_stats[model] = stats
    for reason in stats.fallbacks:
        if reason not in _warned:
            _warned.add(reason)
            try:
                warnings.warn(f"uag: {reason}", UserWarning, stacklevel=5)
            except UserWarning:  # with -W error; the call has its output, which must not be lost
                logger.warning(reason)


def last_stats(model: Any) -> Stats:
    """Return the statistics of a target's last assisted call.

    Raises:
        UnsupportedError: the model has not generated with uag.
    """
    # For a wrapper (LoRA, `torch.compile`), the statistics belong to the wrapped model.
    parts = model.modules() if hasattr(model, "modules") else (model,)
    stats = next((known for part in parts if (known := _last_stats.get(part)) is not None), None)
    if stats is None:
        raise UnsupportedError(
            f"No assisted call of this {type(model).__name__!r} is on record. Generate with uag first: "
            "uag.install(); model.generate(..., assistant_model=draft)."
        )
    return stats
