"""The interface of sources of candidates. The decoding loop knows nothing else of tokenizers and draft caches."""

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import index
from typing import Any

from uag import forks
from uag.errors import OptionError
from uag.lookahead import Lookahead
from uag.projection import Scoring
from uag.proposal import Proposal


@dataclass
class Counts:
    """A drafter's counts over all calls.

    Attributes:
        num_bytes: size of the draft model's weights in the dtype of passes; 0 without one.
        num_tokens: number of draft tokens run, without prompts.
        prefill_s: the part of `forward_s` in which prompts were read.
        compile_s: seconds of recording and compiling passes, excluded from the other times.
        fall_backs: options and passes that failed, with the reason.
        advice: why the draft's passes are slower than they could be.
        passes: how the draft's passes run, and why not in one call.
    """

    num_bytes: int = 0
    num_forwards: int = 0
    num_tokens: int = 0
    forward_s: float = 0.0
    prefill_s: float = 0.0
    compile_s: float = 0.0
    fall_backs: list[str] = field(default_factory=list)
    advice: str = ""
    passes: str = ""


@dataclass(frozen=True)
class Ask:
    """The loop's request to a drafter in one round.

    Attributes:
        budgets: maximum number of candidates per row.
        limit: maximum number of a row's candidates that may use draft passes; 0 while drafting is paused.
        lookahead: predicts costs and acceptance.
        scoring: maps a row and the number of candidates before to the `Scoring` of that output step.
        stop_ids: target ids after which nothing is drafted.
        needs_normalizer: whether scoring needs logits in addition to probabilities.
        vocab_size: size of the target's head.
        verified: returns the target's cache, which has all tokens of a row but the last, and each row's place in it.
        dropped_ids: filled by `put_to` with ids that the head lacks.
    """

    budgets: Sequence[int]
    limit: int
    lookahead: Lookahead
    scoring: Callable[[int, int], Scoring]
    stop_ids: Collection[int] = frozenset()
    needs_normalizer: bool = False
    vocab_size: int = sys.maxsize
    dropped_ids: list[int] = field(default_factory=list)
    verified: Callable[[], tuple[Any, Mapping[int, int]]] | None = None

    @property
    def limits(self) -> list[int]:
        """Maximum number of each row's candidates that may use draft passes."""
        return [min(self.limit, budget) for budget in self.budgets]

    def put_to(self, drafter: "Drafter") -> list[list[Proposal]]:
        """Return a drafter's proposals, cut to the limits and to ids that the target has, or raise an `OptionError`."""
        name = type(drafter).__name__
        lines = drafter.propose(self)
        if not isinstance(lines, Sequence) or len(lines) != len(self.budgets):
            raise OptionError(
                f"{name}.propose returned {lines!r:.80} for {len(self.budgets)} rows. Return one "
                "list of uag.proposal.Proposal for each row, empty if nothing is proposed."
            )
        try:
            return [self._cut(*of_row) for of_row in zip(lines, self.budgets, self.limits, strict=True)]
        except (AttributeError, TypeError, ValueError, RuntimeError) as error:
            forks.let_pass(error)
            raise OptionError(
                f"{name}.propose returned {lines!r:.80}: {error}. Return lists of uag.proposal.Proposal, whose "
                "target_id is an integer and whose confidence is a number from 0 to 1."
            ) from error

    def _cut(self, line: Sequence[Proposal], budget: int, limit: int) -> list[Proposal]:
        kept = line[: budget if line and line[0].is_free else limit]
        if not all(0.0 <= each.confidence <= 1.0 for each in kept):
            raise ValueError("a confidence is not between 0 and 1")
        if not all(isinstance(each.source, str) for each in kept):
            raise TypeError("a source is not a text")
        # A drafter may propose NumPy's numbers, or tensors.
        kept = [
            each
            if type(each.target_id) is int and type(each.confidence) is float
            else replace(each, target_id=index(each.target_id), confidence=float(each.confidence))
            for each in kept
        ]
        beyond = next((i for i, each in enumerate(kept) if not 0 <= each.target_id < self.vocab_size), len(kept))
        if beyond < len(kept) and not kept[0].is_free:  # a prompt may have ids that the head lacks, like image markers
            self.dropped_ids.append(kept[beyond].target_id)
        return kept[:beyond]


class Drafter:
    """A source of candidates. To write your own, inherit and implement `propose`; the other methods do nothing.

    A drafter handles one call at a time; assistants whose calls overlap need one each.

    Attributes:
        strategy: its name in the statistics.
        source: the source of its candidates in the statistics, unless a proposal has its own.
        has_free: whether it may propose free candidates. If not, it is only asked in rounds that may draft.
        draws: whether it may draw from the default generators. What it draws is taken back after each of its methods,
            and with it what other threads drew meanwhile. So set it to False if it does not draw.
        reads_prompts: whether its first pass reads the prompts, which takes time.
    """

    strategy: str = "custom"
    source: str = "source"
    has_free: bool = True
    draws: bool = True
    reads_prompts: bool = True

    @property
    def counts(self) -> Counts:
        """The counts so far; all zero for a source that runs no model."""
        return Counts()

    def start(self, prompts: Sequence[Sequence[int]], source_ids: Sequence[Sequence[int]] | None = None) -> None:
        """Start new sequences, with target ids of each row's prompt without padding.

        Encoder-decoder targets pass `source_ids`, the target ids of each row's encoder input.
        """

    def propose(self, ask: Ask) -> list[list[Proposal]]:
        """Return one list of `Proposal` for each row: at most `ask.limits[row]`, free ones up to `ask.budgets[row]`.

        Candidates beyond these numbers are dropped, and so are those from the first id on that the target's head
        lacks, which the statistics report (`Stats.fallbacks`).
        """
        raise NotImplementedError

    def accept(self, row: int, num_accepted: int, output_ids: Sequence[int]) -> None:
        """Update a row with the target's output of this round: the accepted candidates and its tokens after them."""

    def finish(self, outputs: Sequence[Sequence[int]]) -> None:
        """Receive each row's complete output at the end of a successful call."""

    def release(self) -> None:
        """Drop all sequences and free the memory."""


def require_drafter(drafter: Any) -> None:
    """Raise an `OptionError` for what is no drafter, such as a class."""
    if not isinstance(drafter, Drafter):
        raise OptionError(
            f"drafter={drafter!r:.80} must be an object whose class inherits from uag.drafting.Drafter, such as "
            "uag.drafting.PromptLookup(). Models, names and files are drafts: uag.Assistant(draft)."
        )
    if not isinstance(drafter.source, str):
        raise OptionError(f"{type(drafter).__name__}.source={drafter.source!r:.80} must be a text.")
