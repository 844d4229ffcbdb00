"""Draft passes by llama.cpp, of a model in a GGUF file.

A row is a sequence of llama.cpp's cache. A token may belong to several: rows that begin alike share the cells of what
they have in common, and a token of another continuation is fed as part of a sequence of its own that shares its prefix
with the row's. Rolling back takes tokens away from a sequence.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import torch

from uag.drafting.drafter import Counts
from uag.drafting.models.passes import PassError, completed
from uag.errors import UnsupportedError
from uag.gguf import MOST_SEQUENCES, NUM_BATCH, Cells, GgufDraft, has_gpu, open_weights
from uag.products import clock
from uag.projection import Feed, HasPath, Node

_KEPT_POSITIONS = 8
"""Distributions kept from a pass over many tokens; see `uag.drafting.models.torch_draft`."""

_NUM_SIDE = 8
"""Continuations that a row may try beside its own in one pass: more take more memory for scores."""

_FIRST_CELLS = 1024
"""Tokens that a cache holds at first, for each row; doubled as often as needed. Making one takes 20 ms, and more where
it is larger."""

_MOST_KEPT_CELLS = 4096
"""A cache of at most so many tokens stays for the next call. For a model of 135 million weights that is 90 MB."""

_ERRORS = (
    ArithmeticError, AttributeError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError,
    ctypes.ArgumentError,
)  # fmt: skip
"""What calls into another library raise."""


class GgufPasses:
    """Runs draft passes of a GGUF file for a set of rows; see `Passes`.

    Args:
        draft: the file, and what llama.cpp is to do with it.
        num_ids: entries of its tokenizer; None for those of the head.

    Raises:
        FileNotFoundError: there is no such file.
        UnsupportedError: it holds no model that can draft, or llama-cpp-python is missing.
    """

    is_encoder_decoder = False

    def __init__(self, draft: GgufDraft, num_ids: int | None = None) -> None:
        draft.check()
        self._weights = open_weights(draft.file, draft.gpu_layers)
        self.name = draft.file.path.name
        self.vocab_size = self._weights.vocab_size
        self.max_positions = min(self._weights.max_positions, draft.context or self._weights.max_positions)
        self.counts = Counts(num_parameters=self._weights.num_parameters, num_bytes=self._weights.num_bytes)
        self.needs_normalizer = False
        self.goes_by_time = True
        self.rows: Sequence[HasPath] = ()
        self._fed: list[list[Node]] = []
        self._num_ids = self.vocab_size if num_ids is None else num_ids
        self._threads = draft.threads
        # A token more in a pass costs a CPU four fifths of a pass, a GPU next to nothing.
        self._has_gpu = draft.gpu_layers != 0 and has_gpu()
        self._cells: Cells | None = None
        self._num_rows = 0
        self._failure = ""

    def start(self, rows: Sequence[HasPath], encoder_ids: Sequence[Sequence[int]] | None = None) -> None:  # noqa: ARG002
        """Forget every sequence and begin with `rows`; see `Passes.start`."""
        if self._failure in self.counts.fall_backs:
            self.counts.fall_backs.remove(self._failure)
        if self._cells is not None:
            if len(rows) == self._num_rows:
                self._cells.clear()
                self._cells.set_threads(self._num_threads())
            else:
                self._cells = None
        self.rows, self._num_rows = rows, len(rows)
        self._fed = [[] for _ in rows]

    def release(self) -> None:
        """Drop the rows, and the cache unless it is small."""
        self.rows = ()
        if self._cells is not None and self._cells.num_cells > _MOST_KEPT_CELLS:
            self._cells = None

    def max_side(self, num_rows: int) -> int:
        """Return how many tokens of other continuations pay: none on a CPU; see `Passes.max_side`."""
        has_sequences = max(num_rows, len(self.rows)) * (1 + _NUM_SIDE) <= MOST_SEQUENCES
        return _NUM_SIDE if self._has_gpu and has_sequences else 0

    def fits(self, feed: Feed) -> bool:
        """Say whether a pass stays within the model's positions."""
        return max((node.depth for node in (*feed.nodes, *_side(feed))), default=0) < self.max_positions

    def compact(self) -> None:
        """Do nothing: cells that are free again are used wherever they lie."""

    def feed(self, requests: Sequence[tuple[int, Feed]]) -> None:
        """Run one pass over several rows; see `Passes.feed`."""
        began = clock()
        try:
            self._feed(requests)
        except _ERRORS as error:
            self._cells = None
            self._failure = f"the draft {self.name!r} stopped drafting: {' '.join(str(error).split())}"
            self.counts.fall_backs.append(self._failure)
            raise PassError(self._failure) from error
        seconds, counts = clock() - began, self.counts
        counts.num_forwards += 1
        counts.forward_s += seconds
        if any(not request.keep for _, request in requests):
            counts.prefill_s += seconds
        else:
            counts.num_tokens += sum(len(request.nodes) + len(_side(request)) for _, request in requests)

    def _feed(self, requests: Sequence[tuple[int, Feed]]) -> None:
        requests = completed(requests, self.rows, self._fed)
        for row, request in requests:
            del self.rows[row].path[request.keep :]
        cells = self._reserve(sum(len(request.nodes) + len(_side(request)) for _, request in requests))
        for row, request in requests:
            cells.cut(row, request.keep)
        tokens = _tokens_of(requests)
        num_sequences = len(self.rows)
        for row, request in requests:
            num_sequences = _add_side(cells, tokens, row, request, num_sequences)
        self._run(cells, list(tokens.values()))
        for sequence in range(len(self.rows), num_sequences):
            cells.cut(sequence, 0)
        for row, request in requests:
            self.rows[row].path.extend(request.nodes)

    def _run(self, cells: Cells, tokens: Sequence["_Token"]) -> None:
        for start in range(0, len(tokens), NUM_BATCH):
            part = tokens[start : start + NUM_BATCH]
            logits = cells.decode(
                # An id that the draft has no embedding for becomes its first.
                [token.draft_id if token.draft_id < self.vocab_size else 0 for token in part],
                [token.position for token in part],
                [token.sequences for token in part],
                [token.is_wanted for token in part],
            )
            scores = torch.from_numpy(logits)[:, : self._num_ids]
            probs = torch.softmax(scores, dim=-1).numpy()
            if probs.shape[-1] < self._num_ids:
                probs = np.pad(probs, ((0, 0), (0, self._num_ids - probs.shape[-1])))
            normalizers = torch.logsumexp(scores, dim=-1).tolist() if self.needs_normalizer else None
            for place, token in enumerate(token for token in part if token.is_wanted):
                for node in token.nodes:
                    node.probs = probs[place]
                    if normalizers is not None:
                        node.log_normalizer = normalizers[place]

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
            num_sequences=min(rows * (1 + _NUM_SIDE), MOST_SEQUENCES),
            num_outputs=rows * (_KEPT_POSITIONS + _NUM_SIDE),
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


def _tokens_of(requests: Sequence[tuple[int, Feed]]) -> dict[Node, _Token]:
    """Return the tokens of the rows' own continuations, by the node that each stands for; equal beginnings once."""
    tokens: dict[Node, _Token] = {}
    num_common = _num_common([request for _, request in requests])
    first = requests[0][1].nodes
    for row, request in requests:
        for place, node in enumerate(request.nodes):
            is_wanted = place >= len(request.nodes) - _KEPT_POSITIONS
            if place < num_common and node is not first[place]:
                shared = tokens[first[place]]
                shared.sequences.append(row)
                shared.nodes.append(node)
                shared.is_wanted |= is_wanted
            else:
                tokens[node] = _Token(node.draft_id, node.depth, [row], [node], is_wanted)
    return tokens


def _num_common(requests: Sequence[Feed]) -> int:
    """Return how many tokens all rows begin with; 0 where a row has begun."""
    if len(requests) < 2 or any(request.keep for request in requests):
        return 0
    columns = zip(*([node.draft_id for node in request.nodes] for request in requests), strict=False)
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))


def _add_side(cells: Cells, tokens: dict[Node, _Token], row: int, request: Feed, num_sequences: int) -> int:
    """Add the tokens of other continuations, each continuation a sequence of its own behind `num_sequences`.

    Returns:
        How many sequences there are then.
    """
    side = _side(request)
    for node in side:
        tokens[node] = _Token(node.draft_id, node.depth, [], [node], is_wanted=True)
    inner = {node.parent for node in side}
    for leaf in side:
        if leaf in inner:
            continue
        at: Node | None = leaf
        while at is not None and at in tokens:
            tokens[at].sequences.append(num_sequences)
            at = at.parent
        if at is not None:
            cells.share(row, num_sequences, at.depth + 1)
        num_sequences += 1
    return num_sequences


def _side(feed: Feed) -> Sequence[Node]:
    return getattr(feed, "side", ())
