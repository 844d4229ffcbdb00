"""Draft passes of a set of rows, and what they share whatever runs them: PyTorch or llama.cpp.

The search, the batching of passes and the rows know draft models as `Passes` alone.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from uag.drafting.drafter import Counts
from uag.errors import UagError
from uag.projection import Feed, HasPath, Node

KEPT_POSITIONS = 8
"""Last tokens of a row and of a pass whose distributions are kept. Increase so that healing can look back further;
decrease to save memory, since each is as wide as the vocabulary."""


class PassError(UagError, RuntimeError):
    """A draft pass that failed: the call continues without the draft."""


class Passes(ABC):
    """Draft passes for a set of rows, with exact rollback.

    Args:
        name: of the model, for messages.
        counts: with the model's size; counts all passes.
        vocab_size: entries of the model's head.
        max_positions: the most positions that a row can take.
        num_ids: entries of the model's tokenizer, which the head may exceed or, rarely, fall short of; None for the
            head's own.

    Attributes:
        name, counts, vocab_size, max_positions: as given.
        is_encoder_decoder: whether an encoder reads the row's source.
        needs_normalizer: whether nodes get `log_normalizer`, too; set by the caller.
        rows: the rows, in order.
    """

    is_encoder_decoder = False

    def __init__(self, name: str, counts: Counts, vocab_size: int, max_positions: int, num_ids: int | None) -> None:
        self.name = name
        self.counts = counts
        self.vocab_size = vocab_size
        self.max_positions = max_positions
        self.needs_normalizer = False
        self.rows: Sequence[HasPath] = ()
        self._num_ids = vocab_size if num_ids is None else num_ids
        self._fed: list[list[Node]] = []  # by row, the tokens in the cache
        self._failure = ""

    def start(self, rows: Sequence[HasPath], encoder_ids: Sequence[Sequence[int]] | None = None) -> None:  # noqa: ARG002
        """Forget every sequence and begin with `rows`; nothing is fed yet.

        Args:
            rows: the sequences.
            encoder_ids: draft ids of each row's source text, for encoder-decoders.
        """
        if self._failure in self.counts.fall_backs:
            self.counts.fall_backs.remove(self._failure)
        self.rows = rows
        self._fed = [[] for _ in rows]

    def release(self) -> None:
        """Forget every sequence and free the memory."""
        self.rows, self._fed = (), []

    def max_side(self, num_rows: int) -> int:  # noqa: ARG002
        """Return how many tokens of other continuations (`Feed.side`) each of so many rows may carry in the next pass.

        0 where the model cannot keep continuations apart, or where they cost more than they save.
        """
        return 0

    def fits(self, feed: Feed) -> bool:
        """Say whether a pass stays within the model's positions."""
        return max((node.depth for node in (*feed.nodes, *feed.side)), default=0) < self.max_positions

    def compact(self) -> None:  # noqa: B027 - most caches need nothing of the kind
        """Close the holes that rejected tokens left, where there are any; called before a round."""

    def feed(self, requests: Sequence[tuple[int, Feed]]) -> None:
        """Run one pass over several rows.

        Each row's path is cut to `keep` tokens and grows by `nodes`, whose `probs` are set (for the last few), as are
        those of `side`, which are not kept.

        Args:
            requests: (row, request) pairs, one per row at most.

        Raises:
            PassError: the pass failed, whatever the reason; nothing can be drafted before the next `start`.
        """
        began, compiled_s = time.perf_counter(), self.counts.compile_s
        reads_prompt = any(not request.keep for _, request in requests)
        requests = [(row, self._with_missing(row, request)) for row, request in requests]
        for row, request in requests:
            del self.rows[row].path[request.keep :]
        try:
            self._run(requests)
        except Exception as error:
            self._drop_cache()
            cause = " ".join(str(error).split()) or type(error).__name__
            self._failure = f"the draft {self.name!r} stopped drafting: {cause}"
            self.counts.fall_backs.append(self._failure)
            raise PassError(self._failure) from error
        for row, request in requests:
            self.rows[row].path.extend(request.nodes)
        seconds = time.perf_counter() - began - (self.counts.compile_s - compiled_s)
        self.counts.num_forwards += 1
        self.counts.forward_s += seconds
        if reads_prompt:
            self.counts.prefill_s += seconds
        else:
            self.counts.num_tokens += sum(len(request.nodes) + len(request.side) for _, request in requests)

    def _with_missing(self, row: int, request: Feed) -> Feed:
        """Return a request with the tokens of the row's path that an earlier pass carried, but the cache lacks."""
        path, fed = self.rows[row].path, self._fed[row]
        start = min(request.keep, len(fed), len(path))
        while start and fed[start - 1] is not path[start - 1]:
            start -= 1
        nodes = path[start : request.keep] + request.nodes
        fed[start:] = nodes
        return Feed(start, nodes, request.side)

    @abstractmethod
    def _run(self, requests: Sequence[tuple[int, Feed]]) -> None:
        """Cut each row's cache to `keep` tokens and run the pass."""

    @abstractmethod
    def _drop_cache(self) -> None:
        """Free the cache."""

    def _set_distributions(self, logits: torch.Tensor, places: Iterable[tuple[Node, int]]) -> None:
        """Set the distributions of some nodes.

        Args:
            logits: [num_tokens, vocab_size].
            places: (node, token whose logits follow it) pairs.
        """
        logits = logits[:, : self._num_ids].float()
        probs = torch.softmax(logits, dim=-1).cpu().numpy()
        if probs.shape[-1] < self._num_ids:
            probs = np.pad(probs, ((0, 0), (0, self._num_ids - probs.shape[-1])))
        normalizers = torch.logsumexp(logits, dim=-1).tolist() if self.needs_normalizer else None
        for node, place in places:
            node.probs = probs[place]
            if normalizers is not None:
                node.log_normalizer = normalizers[place]
