"""Draft passes in llama.cpp, of a model in a GGUF file.

A row is a sequence of llama.cpp's cache. Rows with a common prefix share its cells. A rollback removes tokens from a
sequence. The states of a hybrid model (LFM2, Qwen3.5) cannot forget tokens, so such a rollback copies the sequence from
a spare one, into which it was copied before.
"""

from collections.abc import Mapping, Sequence
from os.path import commonprefix

import torch

from uag.drafting.drafter import Counts
from uag.drafting.models.base import KEPT_POSITIONS, Passes, split
from uag.errors import UnsupportedError
from uag.gguf import MOST_SEQUENCES, NUM_BATCH, Cells, GgufDraft
from uag.hf.cache.states import MAX_COPIES, Copies
from uag.projection import Node

_MIN_COPIES = 3  # copies of a row's states, at least; more of them leave room for fewer rows
_FIRST_CELLS = 1024  # tokens of the smallest cache; a new one takes 20 ms, and the text is read again

_MOST_KEPT_CELLS = 4096  # tokens of the largest cache kept for the next call: 90 MB for 135 million weights


class GgufPasses(Passes):
    """Runs draft passes of a GGUF file; see `Passes`. `check_draft` accepts the file."""

    def __init__(self, draft: GgufDraft, num_ids: int | None = None) -> None:
        weights = self._weights = draft.file.weights(draft.gpu_layers)
        counts = Counts(num_bytes=weights.num_bytes)
        max_positions = min(weights.max_positions, draft.context or weights.max_positions)
        super().__init__(draft.file.path.name, counts, weights.vocab_size, max_positions, num_ids)
        self._threads = draft.threads
        self._cells: Cells | None = None
        self._lengths: list[int] = []  # of the rows in the cache
        self._copies: list[Copies[int]] = []  # of each row, the sequence of each copy; empty without states
        self._spare: list[int] = []  # sequences without tokens

    def _begin(self, encoder_ids: Sequence[Sequence[int]]) -> None:  # noqa: ARG002 - no GGUF draft has an encoder
        if self._cells is not None and len(self.rows) == len(self._lengths):
            self._cells.clear()
            self._cells.set_threads(self._num_threads())
        else:
            self._cells = None
        self._empty_rows()

    def _free(self, *, has_failed: bool) -> None:
        if has_failed or (self._cells is not None and self._cells.num_cells > _MOST_KEPT_CELLS):
            self._cells = None

    def _empty_rows(self) -> None:
        """Record that no row has tokens in the cache. The spare sequences follow those of the rows."""
        rows = len(self.rows)
        num = max(_MIN_COPIES, min(MAX_COPIES, MOST_SEQUENCES // max(rows, 1) - 1)) if self._weights.has_states else 0
        self._lengths = [0] * rows
        self._copies = [Copies(num) for _ in range(rows if num else 0)]
        self._spare = list(range(rows, rows + rows * num))

    def _cut(self, row: int, length: int) -> int:
        if self._cells is None or length >= self._lengths[row]:
            return self._lengths[row]
        if not self._copies:
            self._cells.cut(row, length)
        else:
            copies = self._copies[row]
            length = copies.nearest(length)
            if length:
                self._cells.copy(copies.by_length[length], row)
            else:
                self._cells.cut(row, 0)
            self._empty(self._cells, copies.drop(length))
        self._lengths[row] = length
        return length

    def _run(self, nodes: Mapping[int, list[Node]]) -> None:
        cells = self._cells
        needed = sum(self._lengths) + sum(map(len, nodes.values()))
        if cells is None or needed > cells.num_cells:
            # The new cache is empty. Rows without new tokens are read with their next ones.
            nodes = {row: self.rows[row].path[: of_row[0].depth] + of_row for row, of_row in nodes.items()}
            self._empty_rows()
            cells = self._cells = self._new_cells(needed)
        parts = {row: split(of_row) for row, of_row in nodes.items()}
        heads = {row: of_row[0] for row, of_row in parts.items() if len(of_row) > 1}
        tails = {row: of_row[-1] for row, of_row in parts.items()}
        for part in (self._without_common(cells, heads), tails):
            for row in part:
                self._save(cells, row)
            self._decode(cells, part, is_wanted=part is tails)

    def _without_common(self, cells: Cells, heads: Mapping[int, list[Node]]) -> dict[int, list[Node]]:
        """Read the common prefix of new rows once, and return the other tokens."""
        if len(heads) < 2 or any(of_row[0].depth for of_row in heads.values()):
            return dict(heads)
        num = len(commonprefix([[node.draft_id for node in of_row] for of_row in heads.values()]))  # noqa: RUF071 - ids
        first, *others = heads
        self._decode(cells, {first: heads[first][:num]})
        for row in others:
            cells.copy(first, row)
            self._lengths[row] = num
        return {row: of_row[num:] for row, of_row in heads.items()}

    def _save(self, cells: Cells, row: int) -> None:
        """Copy a row's sequence into a spare one, if its states cannot be cut."""
        length = self._lengths[row]
        if length and self._copies:
            copies = self._copies[row]
            self._empty(cells, copies.thin_out())
            copies.by_length[length] = self._spare.pop()
            cells.copy(row, copies.by_length[length])

    def _empty(self, cells: Cells, sequences: Sequence[int]) -> None:
        """Free the cells of copies that are not in use."""
        for sequence in sequences:
            cells.cut(sequence, 0)
        self._spare += sequences

    def _decode(self, cells: Cells, nodes: Mapping[int, list[Node]], *, is_wanted: bool = False) -> None:
        tokens = [(row, node) for row, of_row in nodes.items() for node in of_row]
        for start in range(0, len(tokens), NUM_BATCH):
            batch = tokens[start : start + NUM_BATCH]
            logits = cells.decode(
                # An id without an embedding is replaced by 0.
                [node.draft_id if node.draft_id < self.vocab_size else 0 for _, node in batch],
                [node.depth for _, node in batch],
                [row for row, _ in batch],
                is_wanted=is_wanted,
            )
            if is_wanted:
                self._set_distributions(torch.from_numpy(logits), [(node, i) for i, (_, node) in enumerate(batch)])
        for row, of_row in nodes.items():
            self._lengths[row] += len(of_row)

    def _new_cells(self, num_tokens: int) -> Cells:
        rows = len(self.rows)
        most = MOST_SEQUENCES // (1 + _MIN_COPIES if self._weights.has_states else 1)
        if rows > most:
            raise UnsupportedError(f"llama.cpp takes {most} rows at most, and there are {rows}")
        return Cells(
            self._weights,
            num_cells=max(_FIRST_CELLS, 2 * num_tokens),
            num_sequences=rows + len(self._spare),
            num_outputs=rows * KEPT_POSITIONS,
            num_threads=self._num_threads(),
        )

    def _num_threads(self) -> int:
        # As many as PyTorch: they share OpenMP's thread pool, which would be recreated whenever the number changes.
        return self._threads or torch.get_num_threads()
