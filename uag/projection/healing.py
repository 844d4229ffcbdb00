"""Projects the draft's next-token distribution onto the target's vocabulary.

At every step, a best-first search over draft continuations (`uag.projection.search`) turns the draft's distribution
over draft tokens into a choice of one *target* token. It requests draft passes with `yield`; `uag.drafting` runs them.

Committed text that no draft token covers yet is *pending*. In that case, only draft tokens that begin with the pending
bytes are considered, and the rest of their bytes is projected (boundary healing). The same mechanism re-synchronizes
the draft after a rejection.
"""

from collections.abc import Generator

from uag.projection.pair import TokenizerPair
from uag.projection.scoring import Scoring
from uag.projection.search import BestFirst
from uag.projection.tree import DraftRow, Feed, Node, Search
from uag.proposal import num_equal

_REENCODED_TOKENS = 4  # draft tokens before the pending text that are re-encoded with it
_HEALING_LEVELS = 3  # draft tokens that a search may step back
_HEALING_SHARE = 0.02  # mass of alternatives, relative to the last draft token's, from which they are searched, too


class Projection:
    """Chooses target tokens from draft distributions for one pair of tokenizers."""

    def __init__(self, pair: TokenizerPair) -> None:
        self.maps = pair.maps
        self.reader = pair.first_target
        self.draft = pair.draft

    def encoded(self, parent: Node | None, text: bytes, end: int) -> tuple[list[Node], bool]:
        """Encode `text`, which ends at offset `end`, as draft tokens, and return whether they are exact.

        If not, the draft cannot represent the text: together they stand for all of it, and no search enters them.
        """
        ids = self.draft.encode_continuation(text)
        is_exact = self.draft.join(ids) == text
        unknown = self.draft.controls.unk_id
        if not ids and unknown is not None:
            ids = [unknown]
        nodes: list[Node] = []
        start = end - len(text) if is_exact else end
        for draft_id in ids:
            part = (self.maps.draft_bytes[draft_id] or b"") if is_exact else b""
            start += len(part)
            parent = Node(parent, draft_id, part, start)
            nodes.append(parent)
        return nodes, is_exact

    def settle_pending(self, row: DraftRow) -> Generator[Feed, None, None]:
        """Feed the tokens that the draft must read before it can predict: control tokens and complete pending tokens.

        The last few draft tokens are re-encoded with the pending text: if the target ended its tokens inside a draft
        token (` the`, `re`), the draft must not continue from pieces that its tokenizer would never write.
        """
        row.barrier = min(row.barrier, max(len(row.path) - 1, 0))  # it may be in a rejected part of the path
        if row.forced:
            nodes, row.forced = row.forced, []
            yield Feed(len(row.path), nodes)
            row.barrier = max((node.depth for node in nodes if not node.text), default=row.barrier)
        tail = row.tail()
        node = row.path[tail]
        end = len(row.text) - num_unfinished(row.text)
        is_settled = node.end >= end or tail + 1 < len(row.path)
        if node.probs is None:
            yield Feed(tail, [node])
        if is_settled:
            return
        start = max(row.barrier, tail - _REENCODED_TOKENS)
        origin = row.path[start]
        chain, is_exact = self.encoded(origin, bytes(row.text[origin.end : end]), end)
        if not is_exact:
            rewritten, _ = self.encoded(node, bytes(row.text[node.end : end]), end)
            if rewritten:
                yield Feed(tail + 1, rewritten)
            else:
                row.path[-1].end = end
            row.barrier = len(row.path) - 1
            return
        # The path keeps the tokens that the new encoding has too; only the `fresh` ones after them are fed.
        keep = num_equal((node.draft_id for node in row.path[start + 1 : tail + 1]), (node.draft_id for node in chain))
        last = row.path[start + keep]
        fresh = chain[keep:]
        if len(fresh) == 1 and last.probs is not None:
            # A single new token may begin a longer one, so the search reads both from the last distribution.
            del row.path[start + keep + 1 :]
            return
        fresh[0].parent = last
        yield Feed(start + keep + 1, fresh)

    def _root(self, row: DraftRow) -> Node:
        """Return the token to search from: the last one within the text, or an earlier one with likely alternatives."""
        tail = row.tail()
        root = row.path[tail]
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
        """Choose the next target token of a row, whose path (but not its text) the draft passes change, or None."""
        if scoring.may_feed:
            yield from self.settle_pending(row)
        elif row.forced or row.path[row.tail()].probs is None:
            return None
        return (yield from BestFirst(self.reader, row, scoring, self._root(row)).run())


def num_unfinished(data: bytes | bytearray) -> int:
    """Return the number of bytes of an incomplete UTF-8 character at the end."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte < 0x80:
            return 0
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if length > back else 0
    return 0
