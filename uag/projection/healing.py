"""The draft's next-token distribution, projected onto the target's vocabulary.

The draft never writes freely: at every step its distribution over draft tokens becomes a choice of one *target* token,
by best-first search over draft continuations (`uag.projection.search`).

Text that is committed but not yet covered by draft tokens is *pending*. Then only draft tokens that begin with the
pending bytes count, and the rest of their bytes is projected (boundary healing). The same mechanism re-synchronises
the draft after a rejection.

Everything here works on bytes and NumPy arrays; draft passes are requested with `yield` and run, batched over rows, by
`uag.drafting.models.torch_draft`. Approximations here change how often a candidate is accepted, never the output.
"""

from collections.abc import Generator, Sequence

from uag.projection.pair import TokenizerPair
from uag.projection.reader import TargetReader
from uag.projection.scoring import Scoring
from uag.projection.search import BestFirst
from uag.projection.tree import DraftRow, Feed, Node, Search

_REWRITTEN_TOKENS = 4
"""Draft tokens before the pending text that may be encoded anew with it."""

_HEALING_LEVELS = 3

_HEALING_SHARE = 0.02
"""Alternatives to the last draft token are considered when they hold this share of its mass."""


class Projection:
    """Chooses target tokens from draft distributions for one pair of tokenizers.

    Args:
        pair: the tokenizers.
        max_branches: draft passes per target token that may leave the current path. They are real passes: 0 makes
            the search a plain walk along the most probable path.
        heal: consider draft tokens that begin inside committed text.

    Attributes:
        max_side: continuations that a draft pass may carry beside the one it is made for; the drafter sets it as the
            costs of its passes say.
    """

    def __init__(
        self,
        pair: TokenizerPair,
        *,
        max_branches: int = 1,
        heal: bool = True,
    ) -> None:
        self.maps = pair.maps
        self.reader = TargetReader(pair)
        self.draft = pair.draft
        self.max_branches = max_branches
        self.max_side = 0
        self.heal = heal

    # ------------------------------------------------------------------ committed text -> draft tokens

    def draft_nodes(self, parent: Node | None, text: bytes, end: int) -> list[Node] | None:
        """Encode `text`, which ends at offset `end`, as draft tokens; None where the draft cannot hold it."""
        ids = self.draft.encode_continuation(text)
        parts = [self.maps.draft_bytes[i] for i in ids]
        if any(part is None for part in parts) or b"".join(part for part in parts if part) != text:
            return None
        return self._chain(parent, ids, [part or b"" for part in parts], end - len(text))

    @staticmethod
    def _chain(parent: Node | None, ids: Sequence[int], parts: Sequence[bytes], start: int) -> list[Node]:
        nodes: list[Node] = []
        for draft_id, part in zip(ids, parts, strict=True):
            start += len(part)
            parent = Node(parent, draft_id, part, start)
            nodes.append(parent)
        return nodes

    def _rewritten(self, parent: Node, text: bytes, end: int) -> list[Node]:
        """Encode text that the draft cannot hold exactly, as well as it can, as tokens that stand for it whole."""
        ids = self.draft.encode_continuation(text)
        unknown = self.draft.controls.unk_id
        if not ids and unknown is not None:
            ids = [unknown]
        return self._chain(parent, ids, [b""] * len(ids), end)

    def settle_pending(self, row: DraftRow) -> Generator[Feed, None, None]:
        """Feed what the draft must have seen before it can be asked: control tokens and whole pending tokens.

        The last few draft tokens are encoded anew with the pending text: where the target ended its tokens inside a
        draft token (` the`, `re`), the draft must not go on from pieces that its tokenizer would never write.
        """
        row.barrier = min(row.barrier, max(len(row.path) - 1, 0))  # what was rejected may have reached beyond it
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
        start = max(row.barrier, tail - _REWRITTEN_TOKENS) if self.heal and not again else tail
        origin = row.path[start]
        chain = self.draft_nodes(origin, bytes(row.text[origin.end : end]), end)
        if chain is None:
            rewritten = self._rewritten(node, bytes(row.text[node.end : end]), end)
            yield Feed(tail + 1 - len(again), again + rewritten)
            if not rewritten:
                row.path[-1].end = end
            row.barrier = len(row.path) - 1
            return
        keep = 0
        while keep < tail - start and keep < len(chain) and chain[keep].draft_id == row.path[start + 1 + keep].draft_id:
            keep += 1
        last = row.path[start + keep]
        fresh = chain[keep:]
        if len(fresh) == 1 and last.probs is not None and self.heal:
            del row.path[start + keep + 1 :]  # the search itself weighs this token against longer ones
            return
        fresh[0].parent = last
        yield Feed(start + keep + 1 - len(again), again + fresh)

    def _root(self, row: DraftRow) -> Node:
        """Choose the token to search from: the last one within the text, or earlier where alternatives hold mass."""
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
                low = order.exact_range(pending)[1]  # the fed token itself is no alternative
            if low < high and float(parent.probs[order.ids[low:high]].sum()) > _HEALING_SHARE * fed:
                root = parent
        return root

    # ------------------------------------------------------------------ the search

    def next_target(self, row: DraftRow, scoring: Scoring) -> Search:
        """Choose the next target token of a row; the generator yields the draft passes it needs.

        Args:
            row: the sequence; its path follows the passes, its text is left alone.
            scoring: how masses become scores (noise, temperature, filters).

        Returns:
            The proposal, or None where nothing can be proposed.
        """
        if scoring.may_feed:
            yield from self.settle_pending(row)
        elif row.forced or row.path[row.tail()].probs is None:
            return None
        found = yield from BestFirst(self.reader, row, scoring, self.max_branches, self.max_side).run(self._root(row))
        if found is None and scoring.may_feed and row.path[row.tail()].end < len(row.text):
            # No draft token goes on from the pending bytes in a way the target could have written: cover them first.
            tail = row.tail()
            node = row.path[tail]
            pending = bytes(row.text[node.end :])
            chain = self.draft_nodes(node, pending, len(row.text)) or self._rewritten(node, pending, len(row.text))
            if not chain:
                return None
            yield Feed(tail + 1, chain)
            row.barrier = len(row.path) - 1
            found = yield from BestFirst(self.reader, row, scoring, self.max_branches, self.max_side).run(row.path[-1])
        return found


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
