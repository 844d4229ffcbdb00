"""What a search has found but not decided: open continuations, and the children of a node yet to be looked at."""

from uag.projection.reader import Reading
from uag.projection.tree import Node


class Visit:
    """What one expanded node gave: its mass, what of it went to open children, and what each target token got."""

    __slots__ = ("closed", "mass", "opened")

    def __init__(self, mass: float) -> None:
        self.mass = mass
        self.opened = 0.0
        self.closed: dict[int, float] = {}

    def share(self, target_id: int) -> float:
        """Estimate the mass that goes to `target_id`: what was not looked at is taken to be like what was."""
        own = self.closed.get(target_id)
        if own is None:
            return 0.0
        return own / sum(self.closed.values()) * max(self.mass - self.opened, own)


class OpenChild:
    """A continuation whose first target token is not decided yet: one more draft pass splits its mass."""

    __slots__ = ("draft_id", "mass", "over", "parent")

    def __init__(self, parent: Node, draft_id: int, mass: float, over: bytes) -> None:
        self.parent = parent
        self.draft_id = draft_id
        self.mass = mass
        self.over = over


class Stream:
    """The children of one node in order of mass, looked at one by one: each costs an encoding of its text."""

    __slots__ = ("ids", "known", "masses", "node", "over", "position", "visit")

    def __init__(
        self,
        node: Node,
        ids: list[int],
        masses: list[float],
        over: bytes,
        visit: Visit,
        known: dict[int, Reading],
    ) -> None:
        self.node = node
        self.ids = ids
        self.masses = masses
        self.over = over
        self.visit = visit
        self.known = known
        self.position = 0


Queue = list[tuple[float, int, OpenChild | Stream]]
"""A heap: what was found and not decided, by the negative of the score that it can be expected to reach."""
