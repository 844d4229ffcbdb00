"""The interface of draft passes, through which searches and rows use models of PyTorch and llama.cpp."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from uag import forks
from uag.drafting.drafter import Counts
from uag.errors import UagError
from uag.kernels import Cache, Decoder
from uag.lookahead import clock
from uag.projection import Feed, HasPath, Node

KEPT_POSITIONS = 8  # last tokens of a row and of a pass whose distributions are kept, for healing


class PassError(UagError, RuntimeError):
    """A draft pass failed; the call continues without the draft."""


class Passes(ABC):
    """Draft passes for a set of rows, with exact rollback.

    Args:
        counts: counts that contain the model's size and to which passes are added.
        vocab_size: size of the model's head.
        num_ids: size of the model's tokenizer, which the head's may exceed or, rarely, fall short of; None for the
            head's.

    Attributes:
        is_encoder_decoder: whether an encoder reads the row's source.
        needs_normalizer: whether to set `log_normalizer` of nodes; set by the caller.
        rows: the rows. The cache holds the first tokens of each path: only passes extend it, after `adopt`.
        failure: why passes since the last `start` failed; empty if none did.
    """

    is_encoder_decoder = False

    def __init__(self, name: str, counts: Counts, vocab_size: int, max_positions: int, num_ids: int | None) -> None:
        self.name = name
        self.counts = counts
        self.vocab_size = vocab_size
        self.max_positions = max_positions
        self.needs_normalizer = False
        self.rows: Sequence[HasPath] = ()
        self.failure = ""
        self._num_ids = vocab_size if num_ids is None else num_ids

    def start(self, rows: Sequence[HasPath], encoder_ids: Sequence[Sequence[int]] | None = None) -> None:
        """Drop all sequences and start with `rows`; `encoder_ids` are the draft ids of each row's source text."""
        if self.failure:
            self.counts.fall_backs.remove(self.failure)
            self.failure = ""
        self.rows = rows
        self._begin(encoder_ids or [[]] * len(rows))

    def release(self) -> None:
        """Drop all sequences and free the memory that the next call does not need."""
        self._free(has_failed=False)
        self.rows = ()

    def fits(self, feed: Feed) -> bool:
        """Return whether a pass stays within the model's positions."""
        return max((node.depth for node in feed.nodes), default=0) < self.max_positions

    def feed(self, requests: Sequence[tuple[int, Feed]]) -> None:
        """Run one pass over several rows, with at most one request for each.

        Each row's path is cut to `keep` tokens and extended by `nodes`. This sets `probs` of the last few `nodes`.
        After a PassError, nothing can be drafted before the next `start`.
        """
        with self.counted(reads_prompt=any(not request.keep for _, request in requests)):
            nodes = {row: self._missing(row, request.keep) + request.nodes for row, request in requests}
            self._run(nodes)
        for row, request in requests:
            self.rows[row].path[request.keep :] = request.nodes
        if all(request.keep for _, request in requests):
            self.counts.num_tokens += sum(map(len, nodes.values()))

    @contextmanager
    def counted(self, *, reads_prompt: bool) -> Iterator[None]:
        """Count and time a pass; if it fails, free the cache and raise a PassError."""
        began, compiled_s = clock.now(), self.counts.compile_s
        try:
            yield
        except Exception as error:
            forks.let_pass(error)
            self._free(has_failed=True)
            cause = " ".join(str(error).split()) or type(error).__name__
            self.failure = f"the draft {self.name!r} stopped drafting: {cause}"
            self.counts.fall_backs.append(self.failure)
            raise PassError(self.failure) from error
        seconds = clock.now() - began - (self.counts.compile_s - compiled_s)
        self.counts.num_forwards += 1
        self.counts.forward_s += seconds
        self.counts.prefill_s += seconds if reads_prompt else 0.0

    def _missing(self, row: int, length: int) -> list[Node]:
        """Cut a row's cache to `length` tokens, and return those at the end that it then lacks."""
        return self.rows[row].path[self._cut(row, length) : length]

    @abstractmethod
    def _begin(self, encoder_ids: Sequence[Sequence[int]]) -> None:
        """Empty the cache for `rows`."""

    @abstractmethod
    def _cut(self, row: int, length: int) -> int:
        """Keep at most the first `length` tokens of a row in the cache, and return how many are kept."""

    @abstractmethod
    def _run(self, nodes: Mapping[int, list[Node]]) -> None:
        """Append tokens to rows in the cache, one or more by row, and set the distributions of each row's last ones."""

    @abstractmethod
    def _free(self, *, has_failed: bool) -> None:
        """Free what was computed for these rows; the cache may be kept for the next call, but not after a failure."""

    def _run_decoder(self, decoder: Decoder, cache: Cache, nodes: Mapping[int, list[Node]]) -> None:
        """Append tokens to a decoder's cache, and set the distributions of each row's last ones."""
        size = decoder.num_ids
        rows = [nodes.get(row, []) for row in range(len(self.rows))]
        ids = [[node.draft_id if node.draft_id < size else 0 for node in of_row] for of_row in rows]
        logits = decoder.run(cache, ids, KEPT_POSITIONS)
        kept = [node for of_row in rows for node in of_row[-KEPT_POSITIONS:]]
        self._set_distributions(logits, zip(kept, range(len(kept)), strict=True))

    def _set_distributions(self, logits: torch.Tensor, places: Iterable[tuple[Node, int]]) -> bool:
        """Set the distributions of nodes, by indices in `logits` [num_tokens, vocab_size]; return if any is NaN."""
        logits = logits[:, : self._num_ids].float()
        probs = torch.softmax(logits, dim=-1).cpu().numpy()
        has_overflowed = bool(np.isnan(probs[:, 0]).any())
        if probs.shape[-1] < self._num_ids:
            probs = np.pad(probs, ((0, 0), (0, self._num_ids - probs.shape[-1])))
        normalizers = torch.logsumexp(logits, dim=-1).tolist() if self.needs_normalizer else None
        for node, place in places:
            node.probs = probs[place]
            if normalizers is not None:
                node.log_normalizer = normalizers[place]
        return has_overflowed


def split(nodes: list[Node]) -> list[list[Node]]:
    """Split a row's pass before its last tokens, where the search may return to, so that states can be copied there."""
    first = max(0, len(nodes) - KEPT_POSITIONS)
    return [nodes[:first], nodes[first:]] if first else [nodes]
