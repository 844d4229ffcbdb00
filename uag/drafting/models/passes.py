"""What drafting asks of a draft model, whatever runs it: PyTorch or llama.cpp.

The search, the waves and the rows know draft models by this alone.
"""

from collections.abc import Sequence
from typing import Protocol

from uag.drafting.drafter import Counts
from uag.errors import UagError
from uag.projection import Feed, HasPath, Node


class PassError(UagError, RuntimeError):
    """A draft pass that failed, though the model can draft: the call goes on without it."""


def completed(
    requests: Sequence[tuple[int, Feed]], rows: Sequence[HasPath], fed: Sequence[list[Node]]
) -> list[tuple[int, Feed]]:
    """Return requests with what the rows' paths have and the draft's cache has not: tokens that a pass only carried.

    Args:
        requests: (row, request) pairs.
        rows: the rows, by their paths.
        fed: by row, the tokens in the cache; as they will be behind the pass when this returns.
    """
    found = []
    for row, request in requests:
        path, own = rows[row].path, fed[row]
        start = min(request.keep, len(own), len(path))
        while start and own[start - 1] is not path[start - 1]:
            start -= 1
        nodes = path[start : request.keep] + request.nodes
        own[start:] = nodes
        found.append((row, Feed(start, nodes, request.side)))
    return found


class Passes(Protocol):
    """Draft passes for a set of rows, with exact rollback.

    Attributes:
        name: of the model, for messages.
        vocab_size: entries of its head.
        max_positions: the most positions that a row can take.
        is_encoder_decoder: whether an encoder reads the row's source.
        needs_normalizer: whether nodes get `log_normalizer`, too; set by the caller.
        goes_by_time: whether measured seconds may decide what passes carry; set by the caller, False where the length
            of rounds is fixed, so that the same call does the same passes.
        counts: what was done so far.
        rows: the rows, in order.
    """

    name: str
    vocab_size: int
    max_positions: int
    is_encoder_decoder: bool
    needs_normalizer: bool
    goes_by_time: bool
    counts: Counts
    rows: Sequence[HasPath]

    def start(self, rows: Sequence[HasPath], encoder_ids: Sequence[Sequence[int]] | None = None) -> None:
        """Forget every sequence and begin with `rows`; nothing is fed yet.

        Args:
            rows: the sequences.
            encoder_ids: draft ids of each row's source text, for encoder-decoders.
        """
        ...

    def max_side(self, num_rows: int) -> int:
        """Return how many tokens of other continuations (`Feed.side`) each of so many rows may carry in the next pass.

        As many as pay; 0 where the model cannot keep continuations apart.
        """
        ...

    def fits(self, feed: Feed) -> bool:
        """Say whether a pass stays within the model's positions."""
        ...

    def feed(self, requests: Sequence[tuple[int, Feed]]) -> None:
        """Run one pass over several rows.

        Each row's path is cut to `keep` tokens and grows by `nodes`, whose `probs` are set (for the last few), as are
        those of `side`, which are not kept.

        Args:
            requests: (row, request) pairs, one per row at most.

        Raises:
            PassError: nothing can be drafted in this call any more.
        """
        ...

    def compact(self) -> None:
        """Close the holes that rejected tokens left, where there are any."""
        ...

    def release(self) -> None:
        """Forget every sequence and free the memory."""
        ...
