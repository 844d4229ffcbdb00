"""Sources of candidates: what the decoding loop asks for, and the draft model as such a source.

The loop knows nothing of tokenizers or draft caches: it starts a drafter on the prompts, asks for proposals and tells
what the target wrote. Draft passes of all rows are batched into waves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from uag.lookahead.lookahead import Lookahead
from uag.projection.scoring import ProposalLaw
from uag.projection.vocabulary import SortedBytes
from uag.proposal import Proposal

LawFactory = Callable[[int, int], ProposalLaw]
"""(row, number of candidates before) -> how to score that output step."""

GoOn = Callable[[int, Sequence[Proposal]], bool]
"""(row, its proposals so far) -> whether one more is worth its cost."""


class Drafter(Protocol):
    """A source of candidates.

    A class of its own inherits from this one: what has a body here has a default, and only `start`, `propose`, `accept`
    and `release` must be written.

    Attributes:
        strategy: name for the statistics.
    """

    strategy: str

    @property
    def num_forwards(self) -> int:
        """Draft passes so far, over all calls."""
        return 0

    @property
    def num_tokens(self) -> int:
        """Draft tokens run so far, prompts left out."""
        return 0

    @property
    def seconds(self) -> float:
        """Seconds spent so far in draft passes."""
        return 0.0

    @property
    def prefill_s(self) -> float:
        """Seconds spent so far on reading prompts."""
        return 0.0

    @property
    def compile_s(self) -> float:
        """Seconds spent so far on compiling passes, which the other figures leave out."""
        return 0.0

    @property
    def fall_backs(self) -> Sequence[str]:
        """What could not be done as asked for, with the reason."""
        return ()

    @property
    def size(self) -> int:
        """Weights of the draft model; 0 where there is none."""
        return 0

    @property
    def text_order(self) -> SortedBytes | None:
        """The target's texts in byte order, where proposals come from text; None where ids are taken over."""
        return None

    def check(self, model: Any) -> None:  # noqa: ARG002 - for those that need it
        """Refuse, before any work, a target that this drafter cannot serve.

        Raises:
            PairError: the pair cannot work.
        """
        return

    def prepare(self, logits_processor: Any, stopping_criteria: Any) -> None:  # noqa: ARG002 - for those that need it
        """Learn what of a call concerns the drafter, before `start`."""
        return

    def start(self, prompts: Sequence[Sequence[int]], source_ids: Sequence[Sequence[int]] | None = None) -> None:
        """Begin with new sequences.

        Args:
            prompts: target ids of each row's prompt, without padding.
            source_ids: target ids of each row's encoder input, for encoder-decoder targets.
        """
        ...

    def propose(self, limits: Sequence[int], law: LawFactory, go_on: GoOn) -> list[list[Proposal]]:
        """Return at most `limits[row]` proposals for each row."""
        ...

    def propose_free(self, rooms: Sequence[int], lookahead: Lookahead, limit: int) -> list[list[Proposal]]:  # noqa: ARG002
        """Return candidates that cost no draft pass, for the rows where they promise more than `propose`.

        Args:
            rooms: candidates that each row can take.
            lookahead: knows what passes cost and how often the draft is accepted.
            limit: candidates that the draft model may draft in this round; 0 where it pauses.
        """
        return [[] for _ in rooms]

    def accept(self, row: int, num_accepted: int, output_ids: Sequence[int]) -> None:
        """Learn what the target wrote in this round: the accepted candidates and its own tokens after them."""
        ...

    def release(self) -> None:
        """Forget every sequence and free the memory."""
        ...
