"""Draft passes in llama.cpp, of a model in a GGUF file.

A row is a sequence of llama.cpp's cache. Rows with a common prefix share its cells. A rollback removes tokens from a
sequence. The states of a hybrid model (LFM2, Qwen3.5) cannot forget tokens, so such a rollback copies the sequence from
a spare one, into which it was copied before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from os.path import commonprefix

import torch

from uag.drafting.drafter import Counts
from uag.drafting.models.passes import KEPT_POSITIONS, Batch, Passes, split
from uag.errors import UnsupportedError
from uag.gguf import MOST_SEQUENCES, NUM_BATCH, Cells, GgufDraft
from uag.hf.cache.rewinding import MAX_COPIES, Copies
from uag.projection import Feed, HasPath, Node

_MIN_COPIES = 3
"""Minimum copies of a row's states. Increase to run fewer tokens again after rollbacks in very large batches; decrease
to support more rows."""

_FIRST_CELLS = 1024
"""Minimum number of tokens of a cache. Increase to create caches less often (20 ms each, and the text is read again);
decrease to use less memory."""

_MOST_KEPT_CELLS = 4096
"""Maximum number of tokens of a cache that is kept for the next call. Increase to create caches less often; decrease to
use less memory (at 4096 tokens, 90 MB for a model of 135 million weights)."""


class GgufPasses(Passes):
    """Runs draft passes of a GGUF file; see `Passes`. Raises the errors of `GgufDraft`."""

    def __init__(self, draft: GgufDraft, num_ids: int | None = None) -> None:
        draft.check()
        weights = self._weights = draft.file.weights(draft.gpu_layers)
        counts = Counts(num_bytes=weights.num_bytes)
        max_positions = min(weights.max_positions, draft.context or weights.max_positions)
        super().__init__(draft.file.path.name, counts, weights.vocab_size, max_positions, num_ids)
        self._threads = draft.threads
        self._cells: Cells | None = None
        self._num_rows = 0
        self._copies: list[Copies[int]] = []  # the spare sequences

    def start(self, rows: Sequence[HasPath], encoder_ids: Sequence[Sequence[int]] | None = None) -> None:
        """Drop all sequences and start with `rows`; see `Passes.start`."""
        super().start(rows, encoder_ids)
        if len(rows) != self._num_rows:
            self._num_rows, self._cells = len(rows), None
        if self._cells is not None:
            self._cells.clear()
            self._cells.set_threads(self._num_threads())
        self._copies = self._no_copies()

    def release(self) -> None:
        """Drop all sequences; the cache is kept if it is small."""
        self.batch = Batch()
        if self._cells is not None and self._cells.num_cells > _MOST_KEPT_CELLS:
            self._drop_cache()

    def _drop_cache(self) -> None:
        self._cells = None

    def _run(self, requests: Sequence[tuple[int, Feed]]) -> None:
        cells, rows, slots = self._cells, self.batch.rows, self.batch.slots
        needed = sum(map(len, slots)) + sum(len(request.nodes) for _, request in requests)
        if cells is None or needed > cells.num_cells:
            self._copies = self._no_copies()
            cells = self._cells = self._new_cells(needed)
            # The new cache is empty; rows without a request are read with their next one.
            requests = [(row, Feed(0, rows[row].path[: request.keep] + request.nodes)) for row, request in requests]
            slots[:] = ([] for _ in rows)
        for row, request in requests:
            slots[row] += [node.depth for node in request.nodes]
            self._cut(cells, row, request.keep)
        if not self._copies:
            self._decode(cells, _tokens_of(requests, _num_common([request for _, request in requests])))
            return
        parts = {row: split(request) for row, request in requests}
        heads = [(row, of_row[0]) for row, of_row in parts.items() if len(of_row) > 1]
        for part in (heads, [(row, of_row[-1]) for row, of_row in parts.items()]):
            for row, request in part:
                self._save(cells, row, request.keep)
            self._decode(cells, _tokens_of(part, num_common=0))

    def _cut(self, cells: Cells, row: int, length: int) -> None:
        """Remove a row's tokens from position `length` on; a row with states has that length, or a copy of it, or 0."""
        if not self._copies:
            cells.cut(row, length)
            return
        copies = self._copies[row]
        if length in copies.by_length:
            cells.copy(copies.by_length[length], row)
        elif not length:
            cells.cut(row, 0)
        _empty(cells, copies.drop(length))

    def _save(self, cells: Cells, row: int, length: int) -> None:
        """Copy a row's sequence of `length` tokens into a spare one."""
        if length:
            copies = self._copies[row]
            _empty(cells, copies.thin_out())
            copies.by_length[length] = copies.spare.pop()
            cells.copy(row, copies.by_length[length])

    def _decode(self, cells: Cells, tokens: Sequence["_Token"]) -> None:
        for start in range(0, len(tokens), NUM_BATCH):
            batch = tokens[start : start + NUM_BATCH]
            logits = cells.decode(
                # An id without an embedding is replaced by 0.
                [token.nodes[0].draft_id if token.nodes[0].draft_id < self.vocab_size else 0 for token in batch],
                [token.nodes[0].depth for token in batch],
                [token.sequences for token in batch],
                [token.is_wanted for token in batch],
            )
            wanted = [token for token in batch if token.is_wanted]
            places = [(node, index) for index, token in enumerate(wanted) for node in token.nodes]
            self._set_distributions(torch.from_numpy(logits), places)

    def _new_cells(self, num_tokens: int) -> Cells:
        """Return an empty cache with twice the capacity for `num_tokens`."""
        rows = self._num_rows
        most = MOST_SEQUENCES // (1 + _MIN_COPIES if self._weights.has_states else 1)
        if rows > most:
            raise UnsupportedError(f"llama.cpp takes {most} rows at most, and there are {rows}")
        return Cells(
            self._weights,
            num_cells=max(_FIRST_CELLS, 2 * num_tokens),
            num_sequences=rows + sum(len(copies.spare) for copies in self._copies),
            num_outputs=rows * KEPT_POSITIONS,
            num_threads=self._num_threads(),
        )

    def _no_copies(self) -> list[Copies[int]]:
        """Return the spare sequences of each row, which follow those of the rows; empty without states."""
        rows = self._num_rows if self._weights.has_states else 0
        num = max(_MIN_COPIES, min(MAX_COPIES, MOST_SEQUENCES // max(rows, 1) - 1))
        return [Copies(range(rows + row * num, rows + (row + 1) * num), num) for row in range(rows)]

    def _num_threads(self) -> int:
        # As many as PyTorch: they share OpenMP's thread pool, which would be recreated whenever the number changes.
        return self._threads or torch.get_num_threads()


@dataclass(slots=True)
class _Token:
    """A token of a pass: the sequences that share it, and its node in each. Its distribution is kept if `is_wanted`."""

    sequences: list[int]
    nodes: list[Node]
    is_wanted: bool


def _empty(cells: Cells, sequences: Sequence[int]) -> None:
    """Free the cells of copies that are not in use."""
    for sequence in sequences:
        cells.cut(sequence, 0)


def _tokens_of(requests: Sequence[tuple[int, Feed]], num_common: int) -> list[_Token]:
    """Return the tokens of a pass; the first `num_common` tokens, which all rows share, appear once."""
    tokens: list[_Token] = []
    for row, request in requests:
        for index, node in enumerate(request.nodes):
            is_wanted = index >= len(request.nodes) - KEPT_POSITIONS
            if index < num_common and row != requests[0][0]:
                tokens[index].sequences.append(row)
                tokens[index].nodes.append(node)
                tokens[index].is_wanted |= is_wanted
            else:
                tokens.append(_Token([row], [node], is_wanted))
    return tokens


def _num_common(requests: Sequence[Feed]) -> int:
    """Return the length of the rows' common prefix; 0 if any row has already been fed."""
    if len(requests) < 2 or any(request.keep for request in requests):
        return 0
    return len(commonprefix([[node.draft_id for node in request.nodes] for request in requests]))  # noqa: RUF071 - ids
