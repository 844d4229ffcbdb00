"""Draft passes in llama.cpp, of a model in a GGUF file.

A row is a sequence of llama.cpp's cache. Rows with a common prefix share its cells. A rollback removes tokens from a
sequence.
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
"""Minimum number of tokens of a cache. Increase to create caches less often (20 ms each, longer for larger ones);
decrease to use less memory."""

_MOST_KEPT_CELLS = 4096
"""Maximum number of tokens of a cache that is kept for the next call. Increase to create caches less often; decrease to
use less memory (at 4096 tokens, 90 MB for a model of 135 million weights)."""


class GgufPasses(Passes):
    """Runs draft passes of a GGUF file; see `Passes`.

    Args:
        draft: the file, and options for llama.cpp.
        num_ids: size of its tokenizer; None for the head's.

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
        """Drop all sequences and start with `rows`; see `Passes.start`."""
        super().start(rows, encoder_ids)
        if self._cells is not None and len(rows) == self._num_rows:
            self._cells.clear()
            self._cells.set_threads(self._num_threads())
        else:
            self._cells = None
        self._num_rows = len(rows)

    def release(self) -> None:
        """Drop all sequences; the cache is kept if it is small."""
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
                # An id without an embedding is replaced by 0.
                [token.draft_id if token.draft_id < self.vocab_size else 0 for token in batch],
                [token.position for token in batch],
                [token.sequences for token in batch],
                [token.is_wanted for token in batch],
            )
            wanted = [token for token in batch if token.is_wanted]
            places = [(node, index) for index, token in enumerate(wanted) for node in token.nodes]
            self._set_distributions(torch.from_numpy(logits), places)

    def _reserve(self, num_new: int) -> Cells:
        """Return a cache that has capacity for `num_new` more tokens and contains all that the rows were fed."""
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
        # As many as PyTorch: they share OpenMP's thread pool, which would be recreated whenever the number changes.
        return self._threads or torch.get_num_threads()


@dataclass(slots=True)
class _Token:
    """A token of a pass.

    Attributes:
        draft_id: its id.
        position: its position in its sequences.
        sequences: the sequences that it belongs to.
        nodes: its node in each row that shares it.
        is_wanted: whether the distribution after it is kept.
    """

    draft_id: int
    position: int
    sequences: list[int]
    nodes: list[Node]
    is_wanted: bool


def _tokens_of(requests: Sequence[tuple[int, Feed]]) -> list[_Token]:
    """Return the tokens of a pass; a prefix that all rows share appears once."""
    num_common = _num_common([request for _, request in requests])
    tokens: list[_Token] = []
    for row, request in requests:
        for index, node in enumerate(request.nodes):
            is_wanted = index >= len(request.nodes) - KEPT_POSITIONS
            if index < num_common and row != requests[0][0]:
                tokens[index].sequences.append(row)
                tokens[index].nodes.append(node)
                tokens[index].is_wanted |= is_wanted
            else:
                tokens.append(_Token(node.draft_id, node.depth, [row], [node], is_wanted))
    return tokens


def _num_common(requests: Sequence[Feed]) -> int:
    """Return the length of the rows' common prefix; 0 if any row has already been fed."""
    if len(requests) < 2 or any(request.keep for request in requests):
        return 0
    columns = zip(*([node.draft_id for node in request.nodes] for request in requests), strict=False)
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
