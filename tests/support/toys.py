"""Toy tokenizers of a few pieces, as adapters, and a table-based draft, so that searches can be driven by hand."""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
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

MANY = 10_000
"""An unlimited number of branches."""


class ToyAdapter(TokenizerAdapter):
    """An adapter that matches the longest piece from the left; the last id is EOS.

    Args:
        pieces: bytes of each id; text that they cannot spell is dropped.
        lossy: maps bytes to their replacements before encoding.
    """

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
        """Return the id of a piece."""
        return self.ids[text.encode() if isinstance(text, str) else text]


class TableDraft:
    """A draft model that is a function of the draft ids so far; it counts its passes and tokens.

    Args:
        size: draft vocabulary size.
        distribution: returns its prediction.
        max_branches: maximum number of passes per target token that leave the current path.
    """

    def __init__(self, size: int, distribution: Distribution, max_branches: int = MANY) -> None:
        self.size = size
        self.max_branches = max_branches
        self.distribution = distribution
        self.num_forwards = 0
        self.num_tokens = 0

    def probs(self, ids: Sequence[int]) -> FloatArray:
        """Return [size] float32 probabilities after some draft ids."""
        found = np.zeros(self.size, dtype=np.float32)
        for draft_id, prob in self.distribution(tuple(ids)).items():
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
                    node.probs = self.probs([known.draft_id for known in row.path])
        except StopIteration as end:
            proposal: Proposal | None = end.value
            return proposal


class Toy:
    """A pair of toy tokenizers and a draft table."""

    def __init__(
        self,
        target: Sequence[bytes],
        draft: Sequence[bytes],
        distribution: Distribution,
        max_branches: int = MANY,
    ) -> None:
        self.target, self.draft = ToyAdapter(target), ToyAdapter(draft)
        self.maps = vocabulary_map(self.target, self.draft)
        self.model = TableDraft(self.draft.vocab_size, distribution, max_branches)
        self.projection = Projection(TokenizerPair(self.target, self.draft, self.maps))

    def scoring(self, may_feed: bool = True) -> Scoring:
        return Scoring(self.target.vocab_size, may_feed=may_feed)

    def propose(self, row: DraftRow) -> Proposal | None:
        return self.model.run(row, self.projection.next_target(row, self.scoring()))

    def row(self, *target_texts: bytes) -> CrossRow:
        """Return a row after BOS to which the target wrote tokens one by one, each after a proposal of the draft."""
        row = CrossRow(self.projection, [], (self.draft.eos_id,))
        for text in target_texts:
            self.propose(row)
            row.accept(0, [self.target.id_of(text)])
        return row


def table(draft: ToyAdapter, rows: Mapping[str, Mapping[str, float]], default: Mapping[str, float]) -> Distribution:
    """Return a draft from a table: text so far -> next piece ("$" for EOS) -> probability. EOS starts the context."""

    def ids(row: Mapping[str, float]) -> dict[int, float]:
        return {draft.eos_id if piece == "$" else draft.id_of(piece): prob for piece, prob in row.items()}

    def distribution(context: tuple[int, ...]) -> Mapping[int, float]:
        text = "|".join("" if i == draft.eos_id else draft.pieces[i].decode("latin-1") for i in context)
        return ids(rows.get(text.removeprefix("|"), default))

    return distribution


def spelled(
    target: str,
    draft: str,
    rows: Mapping[str, Mapping[str, float]],
    default: Mapping[str, float] | None = None,
    max_branches: int = MANY,
) -> Toy:
    pieces = [piece.encode() for piece in draft.split()]
    return Toy(
        [piece.encode() for piece in target.split()],
        pieces,
        table(ToyAdapter(pieces), rows, default or {"$": 1.0}),
        max_branches,
    )
