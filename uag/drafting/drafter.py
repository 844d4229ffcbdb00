"""The interface between the decoding loop and a source of candidates.

The loop knows nothing of tokenizers or draft caches: it starts a drafter on the prompts, asks for proposals and reports
what the target wrote.
"""

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Protocol

from uag.errors import OptionError
from uag.lookahead import Lookahead
from uag.projection import Scoring
from uag.proposal import Proposal

_ROUNDING = 1e-3
"""Confidences may exceed 1 by this: shares of float32 probabilities do not sum to 1 exactly."""


@dataclass
class Counts:
    """What a drafter has done so far, over all calls.

    Attributes:
        num_parameters: weights of the draft model; 0 without one.
        num_bytes: their size in the type that passes compute in; quantized files are read faster.
        num_forwards: draft passes.
        num_tokens: draft tokens run, without prompts.
        forward_s: seconds in draft passes.
        prefill_s: the part of them that read prompts.
        compile_s: seconds of compiling passes, which the other figures leave out.
        fall_backs: options and passes that did not work, with the reason.
    """

    num_parameters: int = 0
    num_bytes: int = 0
    num_forwards: int = 0
    num_tokens: int = 0
    forward_s: float = 0.0
    prefill_s: float = 0.0
    compile_s: float = 0.0
    fall_backs: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Ask:
    """What the loop asks of a drafter in one round.

    Attributes:
        rooms: candidates that each row can take at most.
        limit: candidates of a row that draft passes may be spent on; 0 while drafting pauses.
        lookahead: predicts costs and acceptance.
        scoring: (row, number of candidates before) -> how the draft's masses are scored at that output step.
        stop_ids: target ids after which nothing is drafted.
        needs_normalizer: whether scoring needs logits, not masses alone.
        vocab_size: entries of the target's head.
        dropped_ids: filled by `put_to` with ids that the head lacks.
    """

    rooms: Sequence[int]
    limit: int
    lookahead: Lookahead
    scoring: Callable[[int, int], Scoring]
    stop_ids: Collection[int] = frozenset()
    needs_normalizer: bool = False
    vocab_size: int = sys.maxsize
    dropped_ids: list[int] = field(default_factory=list)

    @property
    def limits(self) -> list[int]:
        """Candidates of each row that draft passes may be spent on."""
        return [min(self.limit, room) for room in self.rooms]

    def put_to(self, drafter: "Drafter") -> list[list[Proposal]]:
        """Return what a drafter proposes, cut to the limits and to ids that the target has.

        Raises:
            OptionError: it returns anything but a list of valid proposals for each row; see `Drafter.propose`.
        """
        lines = drafter.propose(self)
        if not isinstance(lines, Sequence):
            raise _invalid(drafter, repr(lines))
        if len(lines) != len(self.rooms):
            raise _invalid(drafter, f"{len(lines)} lists for {len(self.rooms)} rows")
        for row, line in enumerate(lines):
            if not isinstance(line, Sequence):
                raise _invalid(drafter, f"{line!r} for row {row}")
            for proposal in line:
                if not _is_valid(proposal):
                    raise _invalid(drafter, f"{proposal!r} for row {row}")
        return [self._cut(*of_row) for of_row in zip(lines, self.rooms, self.limits, strict=True)]

    def _cut(self, line: Sequence[Proposal], room: int, limit: int) -> list[Proposal]:
        kept = list(line[: room if line and line[0].is_free else limit])
        beyond = next((place for place, each in enumerate(kept) if each.target_id >= self.vocab_size), len(kept))
        if beyond < len(kept) and not kept[0].is_free:  # a prompt may hold ids that the head lacks, as image markers
            self.dropped_ids.append(kept[beyond].target_id)
        return kept[:beyond]


def _is_valid(proposal: Any) -> bool:
    if not isinstance(proposal, Proposal):
        return False
    target_id: Any = proposal.target_id
    confidence: Any = proposal.confidence
    if not (isinstance(target_id, Integral) and isinstance(confidence, Real)):
        return False
    return int(target_id) >= 0 and 0.0 <= float(confidence) <= 1.0 + _ROUNDING


def _invalid(drafter: "Drafter", returned: str) -> OptionError:
    return OptionError(
        f"{type(drafter).__name__}.propose returned {returned}. Return one list of uag.proposal.Proposal for each row, "
        "empty where nothing is proposed, with whole ids of 0 or more and confidences from 0 to 1."
    )


class Drafter(Protocol):
    """A source of candidates; a class of your own inherits from this one and writes the four methods.

    It serves one call at a time: assistants whose calls overlap need one each.

    Attributes:
        strategy: name for the statistics.
        source: the origin of its candidates in the statistics, unless a proposal names its own.
    """

    strategy: str
    source: str = "source"

    @property
    def counts(self) -> Counts:
        """What was done so far; all zero for a source that runs no model."""
        return Counts()

    def start(self, prompts: Sequence[Sequence[int]], source_ids: Sequence[Sequence[int]] | None = None) -> None:
        """Begin with new sequences.

        Args:
            prompts: target ids of each row's prompt, without padding.
            source_ids: target ids of each row's encoder input, for encoder-decoder targets.
        """
        ...

    def propose(self, ask: Ask) -> list[list[Proposal]]:
        """Return one list of `Proposal` for each row: at most `ask.limits[row]`, free ones up to `ask.rooms[row]`.

        Anything else ends the call with an `OptionError` that names this class, as do an id that is no whole number of
        0 or more and a confidence outside 0 to 1. Candidates beyond these numbers are dropped, and so are those from
        the first id that the target's head lacks, which the statistics report (`Stats.fallbacks`).
        """
        ...

    def time_reading(self, num_tokens: int) -> float:  # noqa: ARG002 - most sources read nothing
        """Return the seconds in which the source reads so many tokens of each prompt; 0 where it reads none.

        The prompts stay unread.
        """
        return 0.0

    def accept(self, row: int, num_accepted: int, output_ids: Sequence[int]) -> None:
        """Learn what the target wrote in this round: the accepted candidates and its own tokens after them."""
        ...

    def release(self) -> None:
        """Forget every sequence and free the memory."""
        ...
