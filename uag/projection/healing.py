"""The draft's next-token distribution, projected onto the target's vocabulary.

At every step, the draft's distribution over draft tokens becomes a choice of one *target* token, by best-first search
over draft continuations (`uag.projection.search`).

Committed text that no draft token covers yet is *pending*. Then only draft tokens that begin with the pending bytes
count, and the rest of their bytes is projected (boundary healing). The same mechanism re-synchronizes the draft after a
rejection.

This package works on bytes and NumPy arrays. A search requests draft passes with `yield`; `uag.drafting` runs them,
batched over rows. Approximations here change how often a candidate is accepted, never the output.
"""

from collections.abc import Generator, Sequence

from uag.projection.pair import TokenizerPair
from uag.projection.reader import TargetReader
from uag.projection.scoring import Scoring
from uag.projection.search import BestFirst
from uag.projection.tree import DraftRow, Feed, Node, Search

_REENCODED_TOKENS = 4
"""Draft tokens in front of the pending text that may be encoded again with it. Increase to repair longer wrong splits;
decrease to feed fewer tokens again."""

_HEALING_LEVELS = 3
"""Draft tokens that a search may step back. Increase to find longer alternatives; decrease to compare fewer."""

_HEALING_SHARE = 0.02
"""Share of the last draft token's mass from which its alternatives are searched, too. Increase to search fewer;
decrease to accept more candidates behind a rejected one."""


class Projection:
    """Chooses target tokens from draft distributions for one pair of tokenizers.

    Args:
        pair: the tokenizers.
        max_branches: draft passes per target token that may leave the current path; 0 makes the search a walk along
            the most probable path.
        heal: consider draft tokens that begin inside committed text.

    Attributes:
        max_side: continuations that a draft pass may carry besides the one it is made for; the drafter sets it by the
            costs of its passes.
    """

    def __init__(self, pair: TokenizerPair, *, max_branches: int = 1, heal: bool = True) -> None:
        self.maps = pair.maps
        self.reader = TargetReader(pair)
        self.draft = pair.draft
        self.max_branches = max_branches
        self.max_side = 0
        self.heal = heal

    def draft_nodes(self, parent: Node | None, text: bytes, end: int) -> list[Node] | None:
        """Encode `text`, which ends at offset `end`, as draft tokens; None if the draft cannot represent it."""
        ids = self.draft.encode_continuation(text)
        if self.draft.join(ids) != text:
            return None
        return self._chain(parent, ids, [self.maps.draft_bytes[i] or b"" for i in ids], end - len(text))

    @staticmethod
    def _chain(parent: Node | None, ids: Sequence[int], parts: Sequence[bytes], start: int) -> list[Node]:
        nodes: list[Node] = []
        for draft_id, part in zip(ids, parts, strict=True):
            start += len(part)
            parent = Node(parent, draft_id, part, start)
            nodes.append(parent)
        return nodes

    def _rewritten(self, parent: Node, text: bytes, end: int) -> list[Node]:
        """Encode text that the draft cannot represent exactly, as tokens that together stand for the whole of it."""
        ids = self.draft.encode_continuation(text)
        unknown = self.draft.controls.unk_id
        if not ids and unknown is not None:
            ids = [unknown]
        return self._chain(parent, ids, [b""] * len(ids), end)

    def settle_pending(self, row: DraftRow) -> Generator[Feed, None, None]:
        """Feed what the draft must have read before it can predict: control tokens and whole pending tokens.

        The last few draft tokens are encoded again with the pending text: if the target ended its tokens inside a draft
        token (` the`, `re`), the draft must not continue from pieces that its tokenizer would never write.
        """
        row.barrier = min(row.barrier, max(len(row.path) - 1, 0))  # a rejected part of the path may have set it
        if row.forced:
            nodes, row.forced = row.forced, []
            yield Feed(len(row.path), nodes)
            row.barrier = max((node.depth for node in nodes if not node.text), default=row.barrier)
        tail = row.tail()
        node = row.path[tail]
        again = [] if node.probs is not None else [node]
        end = len(row.text) - num_unfinished(row.text)
        if node.end >= end or tail + 1 < len(row.path):
            if again:
                yield Feed(tail, again)
            return
        start = max(row.barrier, tail - _REENCODED_TOKENS) if self.heal and not again else tail
        origin = row.path[start]
        chain = self.draft_nodes(origin, bytes(row.text[origin.end : end]), end)
        if chain is None:
            rewritten = self._rewritten(node, bytes(row.text[node.end : end]), end)
            yield Feed(tail + 1 - len(again), again + rewritten)
            if not rewritten:
                row.path[-1].end = end
            row.barrier = len(row.path) - 1
            return
        are_equal = [
            old.draft_id == new.draft_id for old, new in zip(row.path[start + 1 : tail + 1], chain, strict=False)
        ]
        keep = [*are_equal, False].index(False)
        last = row.path[start + keep]
        fresh = chain[keep:]
        if len(fresh) == 1 and last.probs is not None and self.heal:
            del row.path[start + keep + 1 :]  # the search itself weighs this token against longer ones
            return
        fresh[0].parent = last
        yield Feed(start + keep + 1 - len(again), again + fresh)

    def _root(self, row: DraftRow) -> Node:
        """Choose the token to search from: the last one within the text, or earlier if alternatives hold mass."""
        tail = row.tail()
        root = row.path[tail]
        if not self.heal:
            return root
        size, order = len(row.text), self.maps.draft_sorted
        fed = 1.0
        for position in range(tail, max(row.barrier, tail - _HEALING_LEVELS), -1):
            node, parent = row.path[position], row.path[position - 1]
            if parent.probs is None or not node.text:
                break
            pending = bytes(row.text[parent.end : size])
            if len(pending) > order.max_length:
                break
            fed *= float(parent.probs[node.draft_id])
            low, high = order.prefix_range(pending)
            if node.end == size:
                low = order.exact_range(pending)[1]  # the fed token itself is not an alternative
            if low < high and float(parent.probs[order.ids[low:high]].sum()) > _HEALING_SHARE * fed:
                root = parent
        return root

    def next_target(self, row: DraftRow, scoring: Scoring) -> Search:
        """Choose the next target token of a row; the generator yields the draft passes it needs.

        Args:
            row: the sequence; its path follows the passes, its text does not change.
            scoring: how masses become scores (noise, temperature, filters).

        Returns:
            The proposal; None if nothing can be proposed.
        """
        if scoring.may_feed:
            yield from self.settle_pending(row)
        elif row.forced or row.path[row.tail()].probs is None:
            return None
        proposal = yield from self._search(row, scoring, self._root(row))
        tail = row.tail()
        node = row.path[tail]
        if proposal is None and scoring.may_feed and node.end < len(row.text):
            # No draft token continues the pending bytes as the target could have written them: cover them first.
            pending = bytes(row.text[node.end :])
            chain = self.draft_nodes(node, pending, len(row.text)) or self._rewritten(node, pending, len(row.text))
            if not chain:
                return None
            yield Feed(tail + 1, chain)
            row.barrier = len(row.path) - 1
            proposal = yield from self._search(row, scoring, row.path[-1])
        return proposal

    def _search(self, row: DraftRow, scoring: Scoring, root: Node) -> Search:
        return BestFirst(self.reader, row, scoring, self.max_branches, self.max_side).run(root)


def num_unfinished(data: bytes | bytearray) -> int:
    """Count the bytes of an unfinished UTF-8 character at the end."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte < 0x80:
            return 0
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if length > back else 0
    return 0
