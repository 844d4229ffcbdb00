"""Best-first search for the next target token over draft continuations.

- `closed[t]` is the mass of continuations whose first target token is decided to be t, because no longer target token
  can still claim their text;
- every other continuation is *open* and holds its mass until one more draft pass splits it;
- t is decided when its closed score is at least what any open continuation can be expected to reach.

The exact sum that this approaches from above is that over cover encodings (Phan et al., arXiv:2410.09303).
"""

import heapq
from itertools import count

import numpy as np

from uag.projection.first_tokens import NO_TOKEN
from uag.projection.frontier import OpenChild, Queue, Stream, Visit
from uag.projection.reader import Closed, Reading, TargetReader
from uag.projection.requests import Requests
from uag.projection.scoring import LOG_SCORE_FLOOR, Scoring
from uag.projection.tally import Tally
from uag.projection.tree import DraftRow, FloatArray, IntArray, Node, Search
from uag.projection.weighing import largest, likeliest

_SUPPORT = 32
"""Draft tokens looked at per distribution, the most probable (with noise: the best scored) first."""

_SUPPORT_WITH_NOISE = 96

_MASS_LOOKED_AT = 0.995
"""With noise a token is selected as often as its mass says, so what is left out costs this little acceptance."""


_WORTH_READING = 0.05
"""With noise, a child that can reach less than this share of the best score is not encoded, but taken to be the longest
target token that it may be, which is right nine times in ten. Higher encodes less and errs more."""

_UNREAD: Reading = -2
"""No draft token reads like this."""


class BestFirst:
    """One search for one target token.

    Args:
        reader: reads text as target tokens.
        row: the sequence; its path follows the passes, its text is left alone.
        scoring: how masses become scores.
        max_branches: passes that may leave the current path.
        max_side: continuations that a pass may carry beside the one it is made for.
    """

    def __init__(
        self, reader: TargetReader, row: DraftRow, scoring: Scoring, max_branches: int, max_side: int = 0
    ) -> None:
        self.reader = reader
        self.max_branches = max_branches
        self.max_side = max_side
        self.maps = reader.maps
        self.row = row
        self.scoring = scoring
        self.size = len(row.text)
        self.support = _SUPPORT_WITH_NOISE if scoring.is_noisy else _SUPPORT
        self.is_simple = scoring.is_plain and not scoring.is_noisy
        self.tally = Tally(scoring, len(self.maps.target_bytes))
        self.guesses = self.tally.is_weighed and scoring.is_plain
        self.open: Queue = []
        self.ties = count()

    def run(self, root: Node) -> Search:
        """Search from `root` until one target token is decided."""
        last_fed = root
        requests = Requests(self.maps, self.row, self.scoring, root, self.max_side)
        num_branches = 0
        self.tally.log_normalizer = root.log_normalizer
        self._expand(root, 1.0, b"")
        while self.open and -self.open[0][0] > self.tally.best_score:
            item = heapq.heappop(self.open)[2]
            if isinstance(item, Stream):
                self._advance(item)
                continue
            child = item.parent.children.get(item.draft_id)
            if child is None or child.probs is None or child.is_carried:
                if not self.scoring.may_feed:
                    self.tally.add(self.reader.settle(item.over), item.mass, Visit(item.mass))
                    continue
                if item.parent is not last_fed and last_fed is not root:
                    if num_branches >= self.max_branches:
                        self.tally.add(self.reader.settle(item.over), item.mass, Visit(item.mass))
                        continue
                    num_branches += 1
                if child is not None and child.probs is not None:
                    requests.take(child)
                else:
                    feed = requests.request(item, self.open, self.tally.best_score, self.tally.leading)
                    yield feed
                    child = feed.nodes[-1]
                last_fed = child
            elif item.parent is last_fed:
                last_fed = child
            self._expand(child, item.mass, item.over)
        return self.tally.decide()

    # ------------------------------------------------------------------ growing the tree

    def _expand(self, node: Node, mass: float, over: bytes) -> None:
        probs = node.law
        if probs is None:
            return
        if node.end >= self.size and self._outweighs(probs, mass, over):
            return
        if node.end < self.size:
            self._cross(node, probs, mass)
        elif over:
            ids = largest(probs, self.support)
            self._stream(node, ids, probs[ids], mass, over, Visit(mass))
        else:
            self._aligned(node, probs, mass)

    def _outweighs(self, probs: FloatArray, mass: float, over: bytes) -> bool:
        """Close the most probable child alone where nothing else can win any more: it holds half of all mass."""
        if not self.is_simple:
            return False
        best = int(probs.argmax())
        share = float(probs[best]) * mass
        text = self.maps.draft_bytes[best]
        if share < 0.5 * self.tally.root_mass or text is None:
            return False
        if over:
            first, is_closed = self.reader.classify(over + text)
        else:
            first, is_closed = int(self.maps.first_target[best]), bool(self.maps.is_closed[best])
        if not is_closed or first == NO_TOKEN:
            return False
        if not over:
            share = float(probs[self.reader.closed_before(first)].sum()) * mass
        self.tally.add(first, share, self.tally.visit(share))
        return True

    def _aligned(self, node: Node, probs: FloatArray, mass: float) -> None:
        """Children at a boundary that both tokenizers share: the precomputed maps answer."""
        visit = self.tally.visit(mass)
        maps = self.maps
        ids = likeliest(self.scoring, probs, maps.first_target, _SUPPORT)
        if self.scoring.is_noisy:
            known = self.reader.children(b"", b"", b"")
            self._look_at_all(Stream(node, ids.tolist(), (probs[ids] * mass).tolist(), b"", visit, known))
            return
        masses, are_closed = probs[ids] * mass, maps.is_closed[ids]
        closed, still_open = np.flatnonzero(are_closed), np.flatnonzero(~are_closed)
        for first, child_mass in zip(maps.first_target[ids[closed]].tolist(), masses[closed].tolist(), strict=True):
            self.tally.add(first, child_mass, visit)
        for draft_id, child_mass in zip(ids[still_open].tolist(), masses[still_open].tolist(), strict=True):
            self._push_open(node, draft_id, child_mass, maps.draft_bytes[draft_id] or b"", visit)

    def _cross(self, node: Node, probs: FloatArray, mass: float) -> None:
        """Children of a token that ends before the committed text does: only those that agree with it count."""
        pending = bytes(self.row.text[node.end : self.size])
        order = self.maps.draft_sorted
        low, high = order.prefix_range(pending)
        ids = order.ids[low:high]
        shorter: list[int] = []
        for length in range(1, min(len(pending), order.max_length + 1)):
            first, last = order.exact_range(pending[:length])
            shorter.extend(order.ids[first:last].tolist())
        if shorter:
            ids = np.concatenate([ids, np.array(shorter, dtype=np.int64)])
        if not ids.size:
            return
        values = probs[ids]
        total = float(values.sum()) * mass
        if not self.tally.visits:
            self.tally.root_mass = max(total, 1e-30)
        if ids.size > self.support:
            best = np.argpartition(values, -self.support)[-self.support :]
            ids, values = ids[best], values[best]
        self._stream(node, ids, values, mass, b"", Visit(total))

    def _stream(self, node: Node, ids: IntArray, values: FloatArray, mass: float, over: bytes, visit: Visit) -> None:
        self.tally.visits.append(visit)
        order = np.argsort(-values, kind="stable")
        if self.scoring.is_noisy:
            shares = np.cumsum((values[order] / max(values[order[0]], LOG_SCORE_FLOOR)) ** self.scoring.sharpness)
            order = order[: int(np.searchsorted(shares, _MASS_LOOKED_AT * shares[-1])) + 1]
        known = self.reader.children(over, bytes(self.row.text[node.end :]), self.row.last_target_text)
        stream = Stream(node, ids[order].tolist(), (values[order] * mass).tolist(), over, visit, known)
        if self.scoring.is_noisy:
            self._look_at_all(stream)
        else:
            self._push_stream(stream)

    def _push_stream(self, stream: Stream) -> None:
        if stream.position < len(stream.ids):
            heapq.heappush(self.open, (-stream.masses[stream.position], next(self.ties), stream))

    def _advance(self, stream: Stream) -> None:
        """Take the next child of a stream."""
        draft_id, mass = stream.ids[stream.position], stream.masses[stream.position]
        stream.position += 1
        self._take(stream, draft_id, mass, self._read(stream, draft_id))
        self._push_stream(stream)

    def _look_at_all(self, stream: Stream) -> None:
        """Take all children, of the closed those first that noise may favour most: each costs an encoding."""
        scoring, tally, visit = self.scoring, self.tally, stream.visit
        closed: list[tuple[float, int, float, Closed]] = []
        still_open: list[tuple[int, float, bytes]] = []
        for draft_id, mass in zip(stream.ids, stream.masses, strict=True):
            reading = self._read(stream, draft_id)
            if isinstance(reading, Closed):
                closed.append((mass * scoring.most(reading.starts), draft_id, mass, reading))
            elif isinstance(reading, bytes):
                still_open.append((draft_id, mass, reading))
            else:
                self._take(stream, draft_id, mass, reading)
        closed.sort(reverse=True)
        for most, _, mass, reading in closed:
            if self.guesses and most < _WORTH_READING * tally.best_score:
                tally.add(reading.starts[-1] if reading.starts else NO_TOKEN, mass, visit)
            else:
                tally.add(self.reader.classify(reading.over)[0], mass, visit)
        for draft_id, mass, over in still_open:
            self._push_open(stream.node, draft_id, mass, over, visit)

    def _read(self, stream: Stream, draft_id: int) -> Reading:
        reading = stream.known.get(draft_id, _UNREAD)
        if reading is _UNREAD:
            pending = bytes(self.row.text[stream.node.end :])
            reading = self.reader.read(draft_id, stream.over, pending, self.row.last_target_text)
            stream.known[draft_id] = reading
        return reading

    def _take(self, stream: Stream, draft_id: int, mass: float, reading: Reading) -> None:
        """Count a child: closed, open, or in conflict with what the target committed."""
        if isinstance(reading, Closed):
            reading = self.reader.classify(reading.over)[0]
        if isinstance(reading, int):
            self.tally.add(reading, mass, stream.visit)
        elif reading is None:
            self.tally.drop(mass, stream.visit)
        else:
            self._push_open(stream.node, draft_id, mass, reading, stream.visit)

    def _push_open(self, parent: Node, draft_id: int, mass: float, over: bytes, visit: Visit) -> None:
        visit.opened += mass
        reach = self.scoring.reach(over, mass, self.maps.target_sorted, self.tally.best_score)
        if reach > self.tally.best_score:  # else it will never be asked for
            heapq.heappush(self.open, (-reach, next(self.ties), OpenChild(parent, draft_id, mass, over)))
