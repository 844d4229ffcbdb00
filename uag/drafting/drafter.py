"""Sources of candidates: what the decoding loop asks of one.

The loop knows nothing of tokenizers or draft caches: it starts a drafter on the prompts, asks for proposals and tells
what the target wrote.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from uag.errors import OptionError
from uag.lookahead import Lookahead
from uag.projection import Scoring
from uag.proposal import Proposal


@dataclass
class Counts:
    """What a drafter has done so far, over all calls.

    Attributes:
        num_parameters: weights of the draft model; 0 where there is none.
        num_bytes: what they take in the type that passes compute in; a file of fewer bits is read faster.
        num_forwards: draft passes.
        num_tokens: draft tokens run, prompts left out.
        forward_s: seconds in draft passes.
        prefill_s: the part of them that read prompts.
        compile_s: seconds of compiling passes, which the other figures leave out.
        fall_backs: what could not be done as asked for, with the reason.
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
    """What the loop wants of a drafter in one round.

    Attributes:
        rooms: candidates that each row can take at most.
        limit: candidates of a row that draft passes may be spent on; 0 where drafting pauses.
        lookahead: knows what passes cost and how often the draft is accepted.
        scoring: (row, number of candidates before) -> how the draft's masses are scored at that output step.
        stop_ids: target ids that nothing is drafted behind.
        needs_normalizer: whether scoring needs logits, not masses alone.
    """

    rooms: Sequence[int]
    limit: int
    lookahead: Lookahead
    scoring: Callable[[int, int], Scoring]
    stop_ids: Collection[int] = frozenset()
    needs_normalizer: bool = False

    @property
    def limits(self) -> list[int]:
        """Candidates of each row that draft passes may be spent on."""
        return [min(self.limit, room) for room in self.rooms]

    def put_to(self, drafter: "Drafter") -> list[list[Proposal]]:
        """Return what a drafter proposes, without what was not asked for.

        Raises:
            OptionError: it returns too few or too many lists.
        """
        lines = drafter.propose(self)
        if len(lines) != len(self.rooms):
            raise OptionError(
                f"{type(drafter).__name__}.propose returned {len(lines)} lists for {len(self.rooms)} rows. Return one "
                "for each row, empty where nothing is proposed."
            )
        rows = zip(lines, self.rooms, self.limits, strict=True)
        return [line[: room if line and line[0].is_free else limit] for line, room, limit in rows]


class Drafter(Protocol):
    """A source of candidates; a class of your own inherits from this one and writes the four methods.

    Attributes:
        strategy: name for the statistics.
        source: what the statistics call the origin of its candidates, where they bear no name of their own.
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
        """Return each row's candidates: at most `ask.limits[row]`, `ask.rooms[row]` where they cost no draft pass."""
        ...

    def accept(self, row: int, num_accepted: int, output_ids: Sequence[int]) -> None:
        """Learn what the target wrote in this round: the accepted candidates and its own tokens after them."""
        ...

    def release(self) -> None:
        """Forget every sequence and free the memory."""
        ...
