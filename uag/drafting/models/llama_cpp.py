"""Draft passes by llama.cpp, of a model in a GGUF file.

A row is a sequence of llama.cpp's cache. Rows that begin alike share the cells of what they have in common. A rollback
removes tokens from a sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch

from uag.drafting.drafter import Counts
from uag.drafting.models.passes import KEPT_POSITIONS, Passes
from uag.errors import UnsupportedError
from uag.gguf import MOST_SEQUENCES, NUM_BATCH, Cells, GgufDraft, open_weights
from uag.projection import Feed, HasPath, Node

_FIRST_CELLS = 1024
"""Tokens that a cache holds at first, for each row; doubled as often as needed. Making one takes 20 ms, and more where
it is larger."""

_MOST_KEPT_CELLS = 4096
"""A cache of at most so many tokens stays for the next call. For a model of 135 million weights that is 90 MB."""


class GgufPasses(Passes):
    """Runs draft passes of a GGUF file; see `Passes`.

    Args:
        draft: the file, and options for llama.cpp.
        num_ids: entries of its tokenizer; None for those of the head.

    Raises:
        FileNotFoundError: there is no such file.
        UnsupportedError: it holds no model that can draft, or llama-cpp-python is missing.
    """

    def __init__(self, draft: GgufDraft, num_ids: int | None = None) -> None:
        draft.check()
        weights = self._weights = open_weights(draft.file, draft.gpu_layers)
        counts = Counts(num_parameters=weights.num_parameters, num_bytes=weights.num_bytes)
        max_positions = min(weights.max_positions, draft.context or weights.max_positions)
        super().__init__(draft.file.path.name, counts, weights.vocab_size, max_positions, num_ids)
        self._threads = draft.threads
        self._cells: Cells | None = None
        self._num_rows = 0

    def start(self, rows: Sequence[HasPath], encoder_ids: Sequence[Sequence[int]] | None = None) -> None:
        """Forget every sequence and begin with `rows`; see `Passes.start`."""
        super().start(rows, encoder_ids)
        if self._cells is not None and len(rows) == self._num_rows:
            self._cells.clear()
            self._cells.set_threads(self._num_threads())
        else:
            self._cells = None
        self._num_rows = len(rows)

    def release(self) -> None:
        """Forget every sequence; the cache stays if it is small."""
        super().release()
        if self._cells is not None and self._cells.num_cells > _MOST_KEPT_CELLS:
            self._cells = None

    def _drop_cache(self) -> None:
        """Free the cache."""
        self._cells = None

    def _run(self, requests: Sequence[tuple[int, Feed]]) -> None:
        cells = self._reserve(sum(len(request.nodes) for _, request in requests))
        for row, request in requests:
            cells.cut(row, request.keep)
        tokens = _tokens_of(requests)
        for start in range(0, len(tokens), NUM_BATCH):
            batch = tokens[start : start + NUM_BATCH]
            logits = cells.decode(
                # An id that the draft has no embedding for becomes its first.
                [token.draft_id if token.draft_id < self.vocab_size else 0 for token in batch],
                [token.position for token in batch],
                [token.sequences for token in batch],
                [token.is_wanted for token in batch],
            )
            wanted = [token for token in batch if token.is_wanted]
            places = [(node, place) for place, token in enumerate(wanted) for node in token.nodes]
            self._set_distributions(torch.from_numpy(logits), places)

    def _reserve(self, num_new: int) -> Cells:
        """Return a cache with room for so many tokens more, with all that the rows were fed."""
        needed = num_new + sum(len(row.path) for row in self.rows)
        old = self._cells
        if old is not None and needed <= old.num_cells:
            return old
        rows = len(self.rows)
        if rows > MOST_SEQUENCES:
            raise UnsupportedError(f"llama.cpp takes {MOST_SEQUENCES} rows at most, and there are {rows}")
        self._cells = Cells(
            self._weights,
            num_cells=max(_FIRST_CELLS, 2 * needed),
            num_sequences=rows,
            num_outputs=rows * KEPT_POSITIONS,
            num_threads=self._num_threads(),
        )
        if old is not None:
            for sequence, row in enumerate(self.rows):
                if row.path:
                    self._cells.bring(old, sequence)
        return self._cells

    def _num_threads(self) -> int:
        # As many as PyTorch: both run on one pool of OpenMP's threads, which another number would make anew each time.
        return self._threads or torch.get_num_threads()


@dataclass(slots=True)
class _Token:
    """A token of a pass.

    Attributes:
        draft_id: its id.
        position: its place in its sequences.
        sequences: those that it belongs to.
        nodes: whose distribution follows it: one of each row that shares it.
        is_wanted: whether that distribution is kept.
    """

    draft_id: int
    position: int
    sequences: list[int]
    nodes: list[Node]
    is_wanted: bool


def _tokens_of(requests: Sequence[tuple[int, Feed]]) -> list[_Token]:
    """Return the tokens of a pass; those that all rows begin with once."""
    num_common = _num_common([request for _, request in requests])
    tokens: list[_Token] = []
    for row, request in requests:
        for place, node in enumerate(request.nodes):
            is_wanted = place >= len(request.nodes) - KEPT_POSITIONS
            if place < num_common and row != requests[0][0]:
                tokens[place].sequences.append(row)
                tokens[place].nodes.append(node)
                tokens[place].is_wanted |= is_wanted
            else:
                tokens.append(_Token(node.draft_id, node.depth, [row], [node], is_wanted))
    return tokens


def _num_common(requests: Sequence[Feed]) -> int:
    """Return how many tokens all rows begin with; 0 where a row has begun."""
    if len(requests) < 2 or any(request.keep for request in requests):
        return 0
    columns = zip(*([node.draft_id for node in request.nodes] for request in requests), strict=False)
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
