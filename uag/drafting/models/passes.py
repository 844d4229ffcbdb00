"""The interface of draft passes, through which searches and rows use models of PyTorch and llama.cpp."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from uag.drafting.drafter import Counts
from uag.errors import UagError
from uag.hf.cache.rewinding import Copies
from uag.lookahead import clock
from uag.projection import Feed, HasPath, Node

KEPT_POSITIONS = 8
"""Number of last tokens of a row and of a pass whose distributions are kept. Increase so that healing can look back
further; decrease to save memory, since each is as wide as the vocabulary."""


class PassError(UagError, RuntimeError):
    """A draft pass failed; the call continues without the draft."""


@dataclass(slots=True)
class Batch:
    """The rows of a draft, and which of their tokens are in its cache.

    Attributes:
        rows: the rows, in order. The cache holds the first tokens of each path: only passes extend it, after `adopt`.
        slots: for each row, the slot of each of these tokens; their positions, if each row has slots of its own.
        num_slots: slots in use, if the rows share one cache of transformers.
        cache: that cache.
    """

    rows: Sequence[HasPath] = ()
    slots: list[list[int]] = field(default_factory=list)
    num_slots: int = 0
    cache: Any = None


class Passes(ABC):
    """Draft passes for a set of rows, with exact rollback.

    Args:
        name: the model's name, for messages.
        counts: counts that contain the model's size and to which passes are added.
        vocab_size: size of the model's head.
        max_positions: maximum positions of a row.
        num_ids: size of the model's tokenizer, which the head's may exceed or, rarely, fall short of; None for the
            head's.

    Attributes:
        is_encoder_decoder: whether an encoder reads the row's source.
        needs_normalizer: whether to set `log_normalizer` of nodes; set by the caller.
        batch: the rows and their tokens in the cache.
        failure: why passes since the last `start` failed; empty if none did.
        has_overflowed: whether the last pass had NaN among its logits.
    """

    is_encoder_decoder = False

    def __init__(self, name: str, counts: Counts, vocab_size: int, max_positions: int, num_ids: int | None) -> None:
        self.name = name
        self.counts = counts
        self.vocab_size = vocab_size
        self.max_positions = max_positions
        self.needs_normalizer = False
        self.batch = Batch()
        self.failure = ""
        self.has_overflowed = False
        self._num_ids = vocab_size if num_ids is None else num_ids
        self._copies: Sequence[Copies[Any]] = ()  # by row, if the model has states that cannot be cut

    def start(self, rows: Sequence[HasPath], encoder_ids: Sequence[Sequence[int]] | None = None) -> None:  # noqa: ARG002
        """Drop all sequences and start with `rows`; nothing is fed yet.

        Encoder-decoders need `encoder_ids`, the draft ids of each row's source text.
        """
        if self.failure:
            self.counts.fall_backs.remove(self.failure)
            self.failure = ""
        self.batch = Batch(rows, [[] for _ in rows], cache=self.batch.cache)

    def release(self) -> None:
        """Drop all sequences and free the memory."""
        self._drop_cache()
        self.batch = Batch()

    def fits(self, feed: Feed) -> bool:
        """Return whether a pass stays within the model's positions."""
        return max((node.depth for node in feed.nodes), default=0) < self.max_positions

    def compact(self) -> None:  # noqa: B027 - most caches do not need it
        """Close any gaps that rejected tokens left; called before a round."""

    def feed(self, requests: Sequence[tuple[int, Feed]]) -> None:
        """Run one pass over several rows, with at most one request for each.

        Each row's path is cut to `keep` tokens and extended by `nodes`. This sets `probs` of the last few `nodes`.

        Raises:
            PassError: the pass failed for any reason; nothing can be drafted before the next `start`.
        """
        began, compiled_s = clock.now(), self.counts.compile_s
        reads_prompt = any(not request.keep for _, request in requests)
        rows = self.batch.rows
        requests = [(row, self._with_missing(row, request)) for row, request in requests]
        for row, request in requests:
            del self.batch.slots[row][request.keep :]
        try:
            self._run(requests)
        except Exception as error:
            self._drop_cache()
            cause = " ".join(str(error).split()) or type(error).__name__
            self.failure = f"the draft {self.name!r} stopped drafting: {cause}"
            self.counts.fall_backs.append(self.failure)
            raise PassError(self.failure) from error
        for row, request in requests:
            rows[row].path[request.keep :] = request.nodes
        seconds = clock.now() - began - (self.counts.compile_s - compiled_s)
        self.counts.num_forwards += 1
        self.counts.forward_s += seconds
        if reads_prompt:
            self.counts.prefill_s += seconds
        else:
            self.counts.num_tokens += sum(len(request.nodes) for _, request in requests)

    def _with_missing(self, row: int, request: Feed) -> Feed:
        """Return a request that includes tokens of the row's path that the cache lacks."""
        num_fed = len(self.batch.slots[row])
        start = min(request.keep, num_fed)
        if self._copies and start < num_fed:
            start = self._copies[row].nearest(start)
        return Feed(start, self.batch.rows[row].path[start : request.keep] + request.nodes)

    @abstractmethod
    def _run(self, requests: Sequence[tuple[int, Feed]]) -> None:
        """Cut each row's cache to `keep` tokens, run the pass, and extend `batch.slots`."""

    @abstractmethod
    def _drop_cache(self) -> None:
        """Free the cache, and all that was computed for these rows."""

    def _set_distributions(self, logits: torch.Tensor, places: Iterable[tuple[Node, int]]) -> None:
        """Set the distributions of nodes, each with its token's index in `logits` [num_tokens, vocab_size]."""
        logits = logits[:, : self._num_ids].float()
        probs = torch.softmax(logits, dim=-1).cpu().numpy()
        self.has_overflowed = bool(np.isnan(probs[:, 0]).any())
        if probs.shape[-1] < self._num_ids:
            probs = np.pad(probs, ((0, 0), (0, self._num_ids - probs.shape[-1])))
        normalizers = torch.logsumexp(logits, dim=-1).tolist() if self.needs_normalizer else None
        for node, place in places:
            node.probs = probs[place]
            if normalizers is not None:
                node.log_normalizer = normalizers[place]


def split(request: Feed) -> list[Feed]:
    """Split a pass before its last tokens, where the search may return to, so that states can be copied there."""
    first = max(0, len(request.nodes) - KEPT_POSITIONS)
    tail = Feed(request.keep + first, request.nodes[first:])
    return [Feed(request.keep, request.nodes[:first]), tail] if first else [tail]
