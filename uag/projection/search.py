"""Best-first search for the next target token over draft continuations.

- `closed[t]` is the mass of continuations whose first target token is certainly t, because no longer target token
  begins with their text;
- every other continuation is *open* and keeps its mass until one more draft pass splits it;
- the search returns t once its closed score is at least the score that any open continuation is expected to reach.

This approximates the sum over cover encodings (Phan et al., arXiv:2410.09303).

The first target token of a text must be encoded, which takes longer than all other work of a search. With noise, any
token may win, so `scoring` and `shortlists` bound scores to encode fewer texts. Without noise, none of this is needed:
the children of a node are read by decreasing mass until no other can win.
"""

import heapq
from itertools import count
from typing import NamedTuple

import numpy as np

from uag.projection.pair import NO_TOKEN, TargetReader
from uag.projection.scoring import LOG_SCORE_FLOOR, Scoring
from uag.projection.shortlists import largest, likeliest
from uag.projection.tree import DraftRow, Feed, FloatArray, IntArray, Node, Search
from uag.proposal import Proposal

_SUPPORT = 32  # draft tokens read per distribution, the most probable (with noise: the best scored) first
_SUPPORT_WITH_NOISE = 96  # `_SUPPORT` with noise, which lifts rarer tokens
_MASS_READ = 0.995  # share of the mass that is read with noise, where each token is selected in proportion to its mass
_MAX_BRANCHES = 1  # draft passes per target token that leave the current path
_LEAST_MASS = 1e-30  # minimum mass of the root, because confidences are divided by it


class OpenChild(NamedTuple):
    """A continuation whose first target token is still undecided."""

    parent: Node
    draft_id: int
    mass: float
    over: bytes


class BestFirst:
    """One search for one target token of a row, whose path (but not its text) the draft passes change."""

    def __init__(self, reader: TargetReader, row: DraftRow, scoring: Scoring, root: Node) -> None:
        self.reader = reader
        self.maps = reader.maps
        self.row = row
        self.scoring = scoring
        self.root = root
        self.size = len(row.text)
        self.support = _SUPPORT_WITH_NOISE if scoring.is_noisy else _SUPPORT
        self.closed: dict[int, float] = {}
        self.best_score = 0.0
        self.root_mass = 1.0
        # A heap of open continuations, keyed by the negative of the score that each is expected to reach.
        self.open: list[tuple[float, int, OpenChild]] = []
        self.ties = count()

    def run(self) -> Search:
        """Search from the root until a target token is decided."""
        last_fed, num_branches = self.root, 0
        self._expand(self.root, 1.0, b"")
        while self.open and -self.open[0][0] > self.best_score:
            item = heapq.heappop(self.open)[2]
            child = item.parent.children.get(item.draft_id)
            if child is None or child.probs is None:
                is_branch = item.parent is not last_fed and last_fed is not self.root
                if not self.scoring.may_feed or (is_branch and num_branches >= _MAX_BRANCHES):
                    self._close(self.reader.of_text(item.over), item.mass)
                    continue
                num_branches += is_branch
                yield (feed := self._feed(item))
                child = last_fed = feed.nodes[-1]
            elif item.parent is last_fed:
                last_fed = child
            self._expand(child, item.mass, item.over)
        target_id = self.scoring.choose(self.closed, self.root.log_normalizer)
        return None if target_id is None else Proposal(target_id, min(1.0, self.closed[target_id] / self.root_mass))

    def _close(self, target_id: int, mass: float) -> None:
        if target_id != NO_TOKEN:
            total = self.closed[target_id] = self.closed.get(target_id, 0.0) + mass
            self.best_score = max(self.best_score, self.scoring.score(target_id, total, self.root.log_normalizer))

    def _feed(self, item: OpenChild) -> Feed:
        """Return the request for the pass that computes the distribution after a continuation."""
        node = item.parent.children.get(item.draft_id)
        if node is None:
            text = self.maps.draft_bytes[item.draft_id] or b""
            node = item.parent.children[item.draft_id] = Node(
                item.parent, item.draft_id, text, item.parent.end + len(text)
            )
        path, nodes = self.row.path, [node]
        while (parent := nodes[-1].parent) is not None and path[parent.depth : parent.depth + 1] != [parent]:
            nodes.append(parent)
        return Feed(nodes[-1].depth, nodes[::-1])

    def _expand(self, node: Node, mass: float, over: bytes) -> None:
        probs = node.valid_probs
        if probs is None:
            return
        if node.end < self.size:
            self._cross(node, probs, mass)
        elif over:
            ids = largest(probs, self.support)
            self._read_children(node, ids, probs[ids], mass, over, b"")
        else:
            self._aligned(node, probs, mass)

    def _aligned(self, node: Node, probs: FloatArray, mass: float) -> None:
        """Read the children at a boundary that both tokenizers share, where the maps have the answer."""
        reader, maps = self.reader, self.maps
        ids = likeliest(self.scoring, probs, reader, _SUPPORT)
        masses, are_closed = probs[ids] * mass, maps.is_closed[ids]
        for first, child_mass in zip(reader[ids[are_closed]].tolist(), masses[are_closed].tolist(), strict=True):
            self._close(first, child_mass)
        for draft_id, child_mass in zip(ids[~are_closed].tolist(), masses[~are_closed].tolist(), strict=True):
            self._push_open(node, draft_id, child_mass, maps.draft_bytes[draft_id] or b"")

    def _cross(self, node: Node, probs: FloatArray, mass: float) -> None:
        """Read the children of a token that ends within the committed text, if they agree with that text."""
        pending = bytes(self.row.text[node.end : self.size])
        order = self.maps.draft_sorted
        low, high = order.prefix_range(pending)
        ids = order.ids[low:high]
        ids = np.concatenate([ids, np.array(order.starts(pending[:-1]), dtype=np.int64)])  # and the shorter ones
        if not ids.size:
            return
        values = probs[ids]
        if node is self.root:
            self.root_mass = max(float(values.sum()), _LEAST_MASS)
        if ids.size > self.support:
            best = np.argpartition(values, -self.support)[-self.support :]
            ids, values = ids[best], values[best]
        self._read_children(node, ids, values, mass, b"", pending)

    def _read_children(
        self, node: Node, ids: IntArray, values: FloatArray, mass: float, over: bytes, pending: bytes
    ) -> None:
        """Read children by decreasing mass until no other can win; with noise, all that have most of the mass."""
        order, last_text = np.argsort(-values, kind="stable"), self.row.last_target_text
        if self.scoring.is_noisy:
            relative = values[order] / max(values[order[0]], LOG_SCORE_FLOOR)
            shares = np.cumsum(relative ** (1.0 / self.scoring.warpers.temperature))
            order = order[: int(np.searchsorted(shares, _MASS_READ * shares[-1])) + 1]
        still_open: list[tuple[int, float, bytes]] = []
        for draft_id, child_mass in zip(ids[order].tolist(), (values[order] * mass).tolist(), strict=True):
            if not self.scoring.is_noisy and child_mass <= self.best_score:
                break
            reading = self.reader.read(draft_id, over, pending, last_text)
            if reading is None:  # in conflict with the committed text
                self.root_mass = max(self.root_mass - child_mass, _LEAST_MASS)
            elif isinstance(reading, int):
                self._close(reading, child_mass)
            else:
                still_open.append((draft_id, child_mass, reading))
        for draft_id, child_mass, text in still_open:
            self._push_open(node, draft_id, child_mass, text)

    def _push_open(self, parent: Node, draft_id: int, mass: float, over: bytes) -> None:
        reach = self.scoring.reach(over, mass, self.maps.target_sorted, self.best_score)
        if reach > self.best_score:  # otherwise it cannot win
            heapq.heappush(self.open, (-reach, next(self.ties), OpenChild(parent, draft_id, mass, over)))
