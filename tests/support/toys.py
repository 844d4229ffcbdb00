"""Toy tokenizers of a few pieces, as adapters, and a table-based draft, so that searches can be driven by hand."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from uag import projection
from uag.adapters import ControlRoles, TokenizerAdapter
from uag.drafting.models.cross_row import CrossRow
from uag.projection import DraftRow, FloatArray, Projection, Scoring, Search, TokenizerPair
from uag.projection.vocabulary import vocabulary_map
from uag.proposal import Proposal

Distribution = Callable[[tuple[int, ...]], Mapping[int, float]]
"""Maps the draft ids so far to the probability of each next draft id; other ids have probability 0."""


class ToyAdapter(TokenizerAdapter):
    """An adapter that matches the longest piece from the left; the last id is EOS."""

    family = "toy"

    def __init__(self, pieces: Sequence[bytes], lossy: Mapping[bytes, bytes] | None = None) -> None:
        self.pieces = list(pieces)
        self.lossy = dict(lossy or {})
        self.ids = {piece: token_id for token_id, piece in reversed(list(enumerate(self.pieces)))}
        self.eos_id = len(self.pieces)
        super().__init__(SimpleNamespace(pieces=self.pieces))

    @classmethod
    def matches(cls, tokenizer: Any) -> int:
        return 0

    def _find_controls(self) -> ControlRoles:
        return ControlRoles(None, self.eos_id, None, None, frozenset({self.eos_id}), {self.eos_id: "</s>"})

    def _build_token_bytes(self) -> dict[int, bytes | None]:
        return dict(enumerate(self.pieces))

    def _encode(self, data: bytes) -> list[int]:
        for source, changed in self.lossy.items():
            data = data.replace(source, changed)
        ids: list[int] = []
        longest = max(map(len, self.pieces))
        while data:
            size = next((n for n in range(longest, 0, -1) if data[:n] in self.ids), 0)
            if size:
                ids.append(self.ids[data[:size]])
            data = data[size or 1 :]
        return ids

    def id_of(self, text: str | bytes) -> int:
        return self.ids[text.encode() if isinstance(text, str) else text]


class Toy:
    """A pair of toy tokenizers, and a draft model that is a function of the draft ids so far.

    Args:
        target: the target's pieces.
        draft: the draft's.
        distribution: returns the draft model's prediction.
        max_branches: maximum number of passes per target token that leave the current path; by default no limit.

    Attributes:
        num_forwards: number of passes of the draft.
        num_tokens: number of tokens that it read.
    """

    def __init__(
        self, target: Sequence[bytes], draft: Sequence[bytes], distribution: Distribution, max_branches: int = 10_000
    ) -> None:
        self.target, self.draft = ToyAdapter(target), ToyAdapter(draft)
        self.distribution = distribution
        self.max_branches = max_branches
        self.maps = vocabulary_map(self.target, self.draft)
        self.projection = Projection(TokenizerPair(self.target, self.draft, self.maps))
        self.num_forwards = self.num_tokens = 0

    def probs(self, ids: tuple[int, ...]) -> FloatArray:
        found = np.zeros(self.draft.vocab_size, dtype=np.float32)
        for draft_id, prob in self.distribution(ids).items():
            found[draft_id] = prob
        return found

    def run(self, row: DraftRow, search: Search) -> Proposal | None:
        """Run the passes that a search requests, as `uag.drafting` does, and return its proposal."""
        try:
            while True:
                with mock.patch.object(projection.search, "_MAX_BRANCHES", self.max_branches):
                    feed = next(search)
                self.num_forwards += 1
                self.num_tokens += len(feed.nodes)
                del row.path[feed.keep :]
                for node in feed.nodes:
                    assert node.depth == len(row.path)
                    assert node.parent is (row.path[-1] if row.path else None)
                    row.path.append(node)
                    node.probs = self.probs(tuple(known.draft_id for known in row.path))
        except StopIteration as end:
            proposal: Proposal | None = end.value
            return proposal

    def propose(self, row: DraftRow, **options: Any) -> Proposal | None:
        """Search once, with options of `Scoring`."""
        return self.run(row, self.projection.next_target(row, Scoring(self.target.vocab_size, **options)))

    def row(self, *target_texts: bytes) -> CrossRow:
        """Return a row after BOS to which the target wrote tokens one by one, each after a proposal of the draft."""
        row = CrossRow(self.projection, [], (self.draft.eos_id,))
        for text in target_texts:
            self.propose(row)
            row.accept(0, [self.target.id_of(text)])
        return row


def spelled(
    target: str,
    draft: str,
    rows: Mapping[str, Mapping[str, float]],
    default: Mapping[str, float] = MappingProxyType({"$": 1.0}),
    **options: int,
) -> Toy:
    """Return a toy from pieces and a table: text so far -> next piece ("$" for EOS) -> probability."""
    pieces = [piece.encode() for piece in draft.split()]
    ids = {"$": len(pieces)} | {piece: token_id for token_id, piece in enumerate(draft.split())}

    def distribution(context: tuple[int, ...]) -> Mapping[int, float]:
        text = "|".join(draft.split()[i] for i in context if i != ids["$"])  # EOS starts the context
        return {ids[piece]: prob for piece, prob in rows.get(text, default).items()}

    return Toy([piece.encode() for piece in target.split()], pieces, distribution, **options)
