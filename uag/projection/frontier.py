"""The search frontier: continuations that a draft pass would split, and children that were not read yet."""

from uag.projection.tally import Visit
from uag.projection.tree import Node


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
