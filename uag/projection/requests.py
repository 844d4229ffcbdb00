"""Requests of draft passes: the continuation that the search asks for, and what the pass carries beside it.

A pass over four tokens costs about what one costs. So it takes along what would be asked for next: the continuations
next in the queue; the draft token of the target token that leads so far, behind which the next candidate is looked for;
and one that makes the likeliest longer token of the continuation itself. Each saves a pass where it is asked for.
"""

import heapq
from collections.abc import Iterator

from uag.projection.frontier import OpenChild, Queue
from uag.projection.scoring import Scoring
from uag.projection.tree import DraftRow, Feed, Node
from uag.projection.vocabulary import VocabularyMap


class Requests:
    """Makes the requests of one search.

    Args:
        maps: of the pair.
        row: the sequence.
        scoring: how masses become scores.
        root: where the search begins.
        max_side: tokens that a pass may carry beside the continuation that it is made for.
    """

    def __init__(self, maps: VocabularyMap, row: DraftRow, scoring: Scoring, root: Node, max_side: int) -> None:
        self.maps = maps
        self.row = row
        self.scoring = scoring
        self.root = root
        self.max_side = max_side

    def child(self, parent: Node, draft_id: int) -> Node:
        """Return the node of a continuation, made where there is none yet."""
        child = parent.children.get(draft_id)
        if child is None:
            text = self.maps.draft_bytes[draft_id] or b""
            child = parent.children[draft_id] = Node(parent, draft_id, text, parent.end + len(text))
        return child

    def request(self, item: OpenChild, queue: Queue, least: float, leading: int | None) -> Feed:
        """Return the request of the pass that gives a continuation its distribution.

        Args:
            item: the continuation.
            queue: the others.
            least: continuations that reach no more than this are not asked for.
            leading: the target token that leads so far.
        """
        nodes = self._chain(self.child(item.parent, item.draft_id), set(), len(self.row.path))
        for node in nodes:
            node.is_carried = False
        feed = Feed(nodes[0].depth, nodes)
        if self.max_side:
            self._fill(feed, item, queue, least, leading)
        return feed

    def take(self, node: Node) -> None:
        """Let the path end in a node that a pass has carried: nothing runs, and all goes on as behind its own pass."""
        chain = self._chain(node, set(), len(self.row.path))
        if chain:
            del self.row.path[chain[0].depth :]
            self.row.path += chain
        for one in (node, *chain):
            one.is_carried = False

    def _fill(self, feed: Feed, item: OpenChild, queue: Queue, least: float, leading: int | None) -> None:
        fed = {id(node) for node in feed.nodes}
        for reach, _, other in heapq.nsmallest(self.max_side + 1, queue):
            if -reach <= least:
                break
            if isinstance(other, OpenChild):
                self._add(feed, fed, self.child(other.parent, other.draft_id))
        for node in self._guesses(feed.nodes[-1], item.over, leading):
            self._add(feed, fed, node)

    def _add(self, feed: Feed, fed: set[int], node: Node) -> None:
        """Let a pass carry a node, and those before it that it lacks, where there is room for all of them."""
        if node.probs is None:
            chain = self._chain(node, fed, feed.keep)
            if len(feed.side) + len(chain) <= self.max_side:
                feed.side += chain
                for one in chain:
                    one.is_carried = one.is_carried or one.probs is None  # those asked for before stay known
                fed.update(map(id, chain))

    def _chain(self, node: Node, fed: set[int], keep: int) -> list[Node]:
        """Return a node and those before it that are neither in the first `keep` of the path nor in `fed`, in order."""
        chain: list[Node] = []
        at: Node | None = node
        while at is not None and id(at) not in fed and not (at.depth < keep and self.row.path[at.depth] is at):
            chain.append(at)
            at = at.parent
        chain.reverse()
        return chain

    def _guesses(self, child: Node, over: bytes, leading: int | None) -> Iterator[Node]:
        if leading is not None:
            pending = bytes(self.row.text[self.root.end :])
            yield from self._behind(self.root, pending + (self.maps.target_bytes[leading] or b""))
        if over:
            longer = self.scoring.likeliest_longer(over, self.maps.target_sorted)
            yield from self._behind(child, longer[len(over) :])

    def _behind(self, parent: Node, text: bytes) -> Iterator[Node]:
        """Yield the node behind `parent` of the draft token whose text this is, if there is one."""
        low, high = self.maps.draft_sorted.exact_range(text)
        if text and low < high:
            yield self.child(parent, int(self.maps.draft_sorted.ids[low]))
