"""The search frontier, and its requests for draft passes.

A pass over four tokens costs about as much as one over a single token. So a pass for one continuation also includes
those that are likely to be requested next: the next continuations in the queue, the draft token of the leading target
token (the next search starts after it), and one that completes the continuation to its likeliest longer token.
"""

import heapq
from collections.abc import Iterator

from uag.projection.scoring import Scoring
from uag.projection.tally import Visit
from uag.projection.tree import DraftRow, Feed, Node
from uag.projection.vocabulary import VocabularyMap


class OpenChild:
    """A continuation whose first target token is still undecided: one more draft pass splits its mass."""

    __slots__ = ("draft_id", "mass", "over", "parent")

    def __init__(self, parent: Node, draft_id: int, mass: float, over: bytes) -> None:
        self.parent = parent
        self.draft_id = draft_id
        self.mass = mass
        self.over = over


class Stream:
    """The children of one node by decreasing mass, read one by one because each may require encoding its text.

    `over` is the node's text after the committed text, and `pending` the committed text after the node's.
    """

    __slots__ = ("ids", "masses", "node", "over", "pending", "position", "visit")

    def __init__(
        self, node: Node, ids: list[int], masses: list[float], over: bytes, pending: bytes, visit: Visit
    ) -> None:
        self.node = node
        self.ids = ids
        self.masses = masses
        self.over = over
        self.pending = pending
        self.visit = visit
        self.position = 0


Queue = list[tuple[float, int, OpenChild | Stream]]
"""A heap of undecided items, keyed by the negative of the score that each is expected to reach."""


class PassRequests:
    """Creates one search's requests for draft passes.

    Args:
        maps: the maps of the pair.
        row: the sequence.
        scoring: converts masses to scores.
        root: the node that the search starts from.
        max_side: maximum number of tokens that a pass may include besides the requested continuation.
    """

    def __init__(self, maps: VocabularyMap, row: DraftRow, scoring: Scoring, root: Node, max_side: int) -> None:
        self.maps = maps
        self.row = row
        self.scoring = scoring
        self.root = root
        self.max_side = max_side

    def child(self, parent: Node, draft_id: int) -> Node:
        """Return the node of a continuation, and create it if needed."""
        child = parent.children.get(draft_id)
        if child is None:
            text = self.maps.draft_bytes[draft_id] or b""
            child = parent.children[draft_id] = Node(parent, draft_id, text, parent.end + len(text))
        return child

    def request(self, item: OpenChild, queue: Queue, least: float, leading: int | None) -> Feed:
        """Return the request for the pass that computes the distribution after a continuation.

        Args:
            item: the continuation.
            queue: the other continuations.
            least: continuations that are not expected to exceed this score are not included.
            leading: the target token of the best score so far.
        """
        nodes = self._chain(self.child(item.parent, item.draft_id), set(), len(self.row.path))
        for node in nodes:
            node.is_carried = False
        feed = Feed(nodes[0].depth, nodes)
        if self.max_side:
            self._fill(feed, item, queue, least, leading)
        return feed

    def take(self, node: Node) -> None:
        """Extend the path to a node that an earlier pass included, as if it had been requested."""
        chain = self._chain(node, set(), len(self.row.path))
        if chain:
            del self.row.path[chain[0].depth :]
            self.row.path += chain
        for taken in (node, *chain):
            taken.is_carried = False

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
        """Include a node and its missing ancestors in a pass if all of them fit."""
        if node.probs is None:
            chain = self._chain(node, fed, feed.keep)
            if len(feed.side) + len(chain) <= self.max_side:
                feed.side += chain
                for added in chain:
                    added.is_carried = added.is_carried or added.probs is None  # not those requested before
                fed.update(map(id, chain))

    def _chain(self, node: Node, fed: set[int], keep: int) -> list[Node]:
        """Return a node and its ancestors, in order, up to one in `fed` or in the first `keep` tokens of the path."""
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
        """Yield the child of `parent` for the draft token with this text, if there is one."""
        low, high = self.maps.draft_sorted.exact_range(text)
        if text and low < high:
            yield self.child(parent, int(self.maps.draft_sorted.ids[low]))
