"""The draft's next-token distribution, projected onto the target's vocabulary.

The draft never writes freely: at every step its distribution over draft tokens becomes a choice of one *target* token,
by best-first search over draft continuations (DESIGN section 3; the cover encodings of Phan et al., arXiv:2410.09303,
are the exact sum that this search approaches from above):

- `closed[t]` is the mass of continuations whose first target token is decided to be t, because no longer target token
  can still claim their text;
- every other continuation is *open* and holds its mass until one more draft pass splits it;
- t is decided when its closed score is at least the bound of every open continuation.

Text that is committed but not yet covered by draft tokens is *pending*. Then only draft tokens that begin with the
pending bytes count, and the rest of their bytes is projected (boundary healing). The same mechanism re-synchronises
the draft after a rejection.

Everything here works on bytes and NumPy arrays; draft passes are requested with `yield` and run, batched over rows, by
`uag.draft`. Approximations here change how often a candidate is accepted, never the output.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import numpy.typing as npt

from uag.adapters import TokenizerAdapter
from uag.law import ProposalLaw
from uag.vocabulary import NO_TOKEN, VocabularyMap, first_matching

FloatArray = npt.NDArray[np.float32]

_SUPPORT = 32
"""Draft tokens looked at per distribution, the most probable (with noise: the best scored) first."""

_SUPPORT_WITH_NOISE = 96

_MAX_CLASSIFIED = 200_000
"""Entries of the text -> first target token memo before it is emptied."""

_REWRITTEN_TOKENS = 4
"""Draft tokens before the pending text that may be encoded anew with it."""

_HEALING_LEVELS = 3
_HEALING_SHARE = 0.02
"""Alternatives to the last draft token are considered when they hold this share of its mass."""


class Node:
    """One draft token in the tree of continuations that were run through the draft.

    Attributes:
        parent: the token before it.
        draft_id: its id in the draft's vocabulary.
        text: the bytes it covers; empty for control tokens.
        end: offset in the row's byte stream where its text ends.
        depth: number of draft tokens before it in the row.
        probs: [draft_vocab_size] float32, the draft's distribution after this token, None where it was not kept.
        log_normalizer: logsumexp of the logits behind `probs`.
        children: continuations by draft id.
    """

    __slots__ = ("children", "depth", "draft_id", "end", "log_normalizer", "parent", "probs", "text")

    def __init__(self, parent: Node | None, draft_id: int, text: bytes, end: int) -> None:
        self.parent = parent
        self.draft_id = draft_id
        self.text = text
        self.end = end
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.probs: FloatArray | None = None
        self.log_normalizer = 0.0
        self.children: dict[int, Node] = {}

    def forget(self) -> None:
        """Free what the search kept here."""
        self.probs = None
        self.children = {}


@dataclass(slots=True)
class Feed:
    """A request for a draft pass: keep the first `keep` tokens of the row's path, then feed `nodes`."""

    keep: int
    nodes: list[Node]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A candidate and what the draft thinks of it.

    Attributes:
        target_id: the candidate in the target's id space.
        confidence: the share of the draft's mass that agrees, 0 to 1.
        law: [target_vocab_size] float64, the law that the candidate was drawn from; None where it was not drawn.
    """

    target_id: int
    confidence: float
    law: npt.NDArray[np.float64] | None = field(default=None, repr=False, compare=False)


Search = Generator[Feed, None, Proposal | None]


@dataclass(slots=True)
class DraftRow:
    """One sequence as the draft sees it.

    Attributes:
        text: bytes of the committed target tokens, the current candidates included.
        path: the draft tokens in the draft's cache, in order.
        barrier: depth above which the search never steps back: control tokens and rewritten text.
        forced: draft tokens that must be fed before anything else.
        last_target_text: bytes of the last committed target token.
    """

    text: bytearray = field(default_factory=bytearray)
    path: list[Node] = field(default_factory=list)
    barrier: int = 0
    forced: list[Node] = field(default_factory=list)
    last_target_text: bytes = b""

    def tail(self) -> int:
        """Return the position in `path` of the last token that ends within the committed text."""
        size, position = len(self.text), len(self.path) - 1
        while self.path[position].end > size:
            position -= 1
        return position

    def truncate_path(self, valid_bytes: int) -> None:
        """Drop the draft tokens that contradict the text, which changed from offset `valid_bytes` on."""
        path, text = self.path, self.text
        size = len(text)
        start = len(path)
        while start > 0 and path[start - 1].end > valid_bytes:
            start -= 1
        for position in range(start, len(path)):
            node = path[position]
            begin = node.end - len(node.text)
            known = text[begin : min(node.end, size)]
            if node.text[: len(known)] != known:
                if position:
                    path[position - 1].children.pop(node.draft_id, None)
                del path[position:]
                return

    def forget_before(self, num_kept: int) -> None:
        """Free distributions and side branches of all but the last `num_kept` draft tokens."""
        position = len(self.path) - num_kept - 1
        while position >= 0 and (self.path[position].probs is not None or self.path[position].children):
            self.path[position].forget()
            position -= 1


class Projection:
    """Chooses target tokens from draft distributions for one pair of tokenizers.

    Args:
        maps: the byte-exact maps of the pair.
        target: adapter of the target's tokenizer.
        draft: adapter of the draft's tokenizer.
        max_branches: draft passes per target token that may leave the current path. They are real passes: 0 makes
            the search a plain walk along the most probable path.
        heal: consider draft tokens that begin inside committed text.
    """

    def __init__(
        self,
        maps: VocabularyMap,
        target: TokenizerAdapter,
        draft: TokenizerAdapter,
        *,
        max_branches: int = 1,
        heal: bool = True,
    ) -> None:
        self.maps = maps
        self.target = target
        self.draft = draft
        self.max_branches = max_branches
        self.heal = heal
        self._consistent: dict[bytes, int] = {}

    # ------------------------------------------------------------------ text -> target tokens

    def classify(self, text: bytes) -> tuple[int, bool]:
        """Return the first target token of `text` and whether it is decided whatever follows.

        The token of open text is `NO_TOKEN`: it costs an encoding and is rarely asked for (see `settle`).
        """
        memo = self.maps.classified
        known = memo.get(text)
        if known is None:
            is_open = self.maps.target_sorted.has_longer(text)
            known = (NO_TOKEN, False) if is_open else (self.settle(text), True)
            if len(memo) >= _MAX_CLASSIFIED:
                memo.clear()
            memo[text] = known
        return known

    def settle(self, text: bytes) -> int:
        """Return the first target token of `text` taken alone."""
        return first_matching(self.maps.target_bytes, self.target.encode_continuation(text), text)

    def keeps_boundary(self, last: bytes, rest: bytes) -> bool:
        """Say whether the target would have ended a token at the boundary, had it been about to write `rest`."""
        if not last or not rest:
            return True
        joined = last + rest
        first = self._consistent.get(joined)
        if first is None:
            first = self.settle(joined)
            if len(self._consistent) >= _MAX_CLASSIFIED:
                self._consistent.clear()
            self._consistent[joined] = first
        return first == NO_TOKEN or self.maps.target_bytes[first] == last

    # ------------------------------------------------------------------ committed text -> draft tokens

    def draft_nodes(self, parent: Node | None, text: bytes, end: int) -> list[Node] | None:
        """Encode `text`, which ends at offset `end`, as a chain of draft tokens; None where the draft cannot hold it."""
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

    def next_target(self, row: DraftRow, law: ProposalLaw) -> Search:
        """Choose the next target token of a row; the generator yields the draft passes it needs.

        Args:
            row: the sequence; its path follows the passes, its text is left alone.
            law: how masses become scores (noise, temperature, filters).

        Returns:
            The proposal, or None where nothing can be proposed.
        """
        if law.may_feed:
            yield from self.settle_pending(row)
        elif row.forced or row.path[row.tail()].probs is None:
            return None
        found = yield from _BestFirst(self, row, law).run(self._root(row))
        if found is None and law.may_feed and row.path[row.tail()].end < len(row.text):
            # No draft token goes on from the pending bytes in a way the target could have written: cover them first.
            tail = row.tail()
            node = row.path[tail]
            pending = bytes(row.text[node.end :])
            chain = self.draft_nodes(node, pending, len(row.text)) or self._rewritten(node, pending, len(row.text))
            if not chain:
                return None
            yield Feed(tail + 1, chain)
            row.barrier = len(row.path) - 1
            found = yield from _BestFirst(self, row, law).run(row.path[-1])
        return found


class _OpenChild:
    """A continuation whose first target token is not decided yet: one more draft pass splits its mass."""

    __slots__ = ("draft_id", "mass", "over", "parent")

    def __init__(self, parent: Node, draft_id: int, mass: float, over: bytes) -> None:
        self.parent = parent
        self.draft_id = draft_id
        self.mass = mass
        self.over = over


class _Stream:
    """The children of one node in order of mass, looked at one by one: each costs an encoding of its text."""

    __slots__ = ("ids", "masses", "node", "over", "position", "visit")

    def __init__(self, node: Node, ids: list[int], masses: list[float], over: bytes, visit: _Visit) -> None:
        self.node = node
        self.ids = ids
        self.masses = masses
        self.over = over
        self.visit = visit
        self.position = 0


class _Visit:
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


class _BestFirst:
    """One search for one target token."""

    def __init__(self, projection: Projection, row: DraftRow, law: ProposalLaw) -> None:
        self.projection = projection
        self.maps = projection.maps
        self.row = row
        self.law = law
        self.size = len(row.text)
        self.support = _SUPPORT_WITH_NOISE if law.is_noisy else _SUPPORT
        self.closed: dict[int, float] = {}
        self.best_score = 0.0
        self.open: list[tuple[float, int, _OpenChild | _Stream]] = []
        self.ties = count()
        self.visits: list[_Visit] = []
        self.root_mass = 1.0
        self.log_normalizer = 0.0

    def run(self, root: Node) -> Search:
        """Search from `root` until one target token is decided."""
        last_fed = root
        num_branches = 0
        self.log_normalizer = root.log_normalizer
        self._expand(root, 1.0, b"")
        while self.open and -self.open[0][0] > self.best_score:
            item = heapq.heappop(self.open)[2]
            if isinstance(item, _Stream):
                self._advance(item)
                continue
            child = item.parent.children.get(item.draft_id)
            if child is None or child.probs is None:
                if not self.law.may_feed:
                    self._add(self.projection.settle(item.over), item.mass, _Visit(item.mass))
                    continue
                if item.parent is not last_fed and last_fed is not root:
                    if num_branches >= self.projection.max_branches:
                        self._add(self.projection.settle(item.over), item.mass, _Visit(item.mass))
                        continue
                    num_branches += 1
                child = yield from self._feed(item.parent, item.draft_id)
                last_fed = child
            elif item.parent is last_fed:
                last_fed = child
            self._expand(child, item.mass, item.over)
        return self._decide()

    def _feed(self, parent: Node, draft_id: int) -> Generator[Feed, None, Node]:
        child = parent.children.get(draft_id)
        if child is None:
            text = self.maps.draft_bytes[draft_id] or b""
            child = Node(parent, draft_id, text, parent.end + len(text))
            parent.children[draft_id] = child
        nodes = [child]
        path = self.row.path
        ancestor: Node | None = parent
        while ancestor is not None and not (ancestor.depth < len(path) and path[ancestor.depth] is ancestor):
            nodes.append(ancestor)
            ancestor = ancestor.parent
        nodes.reverse()
        yield Feed(nodes[0].depth, nodes)
        return child

    # ------------------------------------------------------------------ growing the tree

    def _expand(self, node: Node, mass: float, over: bytes) -> None:
        probs = node.probs
        if probs is None:
            return
        if node.end < self.size:
            self._cross(node, probs, mass)
        elif over:
            ids = _largest(probs, self.support)
            self._stream(node, ids, probs[ids], mass, over, _Visit(mass))
        else:
            self._aligned(node, probs, mass)

    def _aligned(self, node: Node, probs: FloatArray, mass: float) -> None:
        """Children at a boundary that both tokenizers share: the precomputed maps answer."""
        visit = self._visit(mass)
        maps = self.maps
        ids = _largest(self.law.weigh(probs, maps.first_target), self.support)
        if self.law.is_noisy:
            ids = np.union1d(ids, _largest(probs, _SUPPORT))
        firsts = maps.first_target[ids].tolist()
        are_closed = maps.is_closed[ids].tolist()
        masses = (probs[ids] * mass).tolist()
        for draft_id, first, is_closed, child_mass in zip(ids.tolist(), firsts, are_closed, masses, strict=True):
            if is_closed:
                self._add(first, child_mass, visit)
            else:
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
        if not self.visits:
            self.root_mass = max(total, 1e-30)
        if ids.size > self.support:
            best = np.argpartition(values, -self.support)[-self.support :]
            ids, values = ids[best], values[best]
        self._stream(node, ids, values, mass, b"", _Visit(total))

    def _stream(
        self, node: Node, ids: npt.NDArray[np.int64], values: FloatArray, mass: float, over: bytes, visit: _Visit
    ) -> None:
        self.visits.append(visit)
        order = np.argsort(-values, kind="stable")
        stream = _Stream(node, ids[order].tolist(), (values[order] * mass).tolist(), over, visit)
        if self.law.is_noisy:
            while stream.position < len(stream.ids):
                self._look(stream)
        else:
            self._push_stream(stream)

    def _push_stream(self, stream: _Stream) -> None:
        if stream.position < len(stream.ids):
            heapq.heappush(self.open, (-stream.masses[stream.position], next(self.ties), stream))

    def _advance(self, stream: _Stream) -> None:
        self._look(stream)
        self._push_stream(stream)

    def _look(self, stream: _Stream) -> None:
        """Take the next child of a stream: closed, open, or in conflict with what the target committed."""
        draft_id, mass = stream.ids[stream.position], stream.masses[stream.position]
        stream.position += 1
        node, visit = stream.node, stream.visit
        text = self.maps.draft_bytes[draft_id]
        if text is None:
            # A control token ends the text: with text beyond the committed, that text is now decided.
            if stream.over:
                self._add(self.projection.settle(stream.over), mass, visit)
            return
        crossing = self.size - node.end
        if crossing > 0:
            if len(text) <= crossing:
                self._push_open(node, draft_id, mass, b"", visit)
                return
            over = text[crossing:]
            if not self.projection.keeps_boundary(self.row.last_target_text, over):
                visit.mass -= mass
                self.root_mass = max(self.root_mass - mass, 1e-30)
                return
        else:
            over = stream.over + text
        first, is_closed = self.projection.classify(over)
        if is_closed:
            self._add(first, mass, visit)
        else:
            self._push_open(node, draft_id, mass, over, visit)

    def _push_open(self, parent: Node, draft_id: int, mass: float, over: bytes, visit: _Visit) -> None:
        visit.opened += mass
        bound = self.law.bound(over, mass)
        heapq.heappush(self.open, (-bound, next(self.ties), _OpenChild(parent, draft_id, mass, over)))

    # ------------------------------------------------------------------ deciding

    def _visit(self, mass: float) -> _Visit:
        visit = _Visit(mass)
        self.visits.append(visit)
        return visit

    def _add(self, target_id: int, mass: float, visit: _Visit) -> None:
        if target_id == NO_TOKEN:
            return
        total = self.closed.get(target_id, 0.0) + mass
        self.closed[target_id] = total
        visit.closed[target_id] = visit.closed.get(target_id, 0.0) + mass
        score = self.law.score(target_id, total, self.log_normalizer)
        if score > self.best_score:
            self.best_score = score

    def _decide(self) -> Proposal | None:
        target_id = self.law.choose(self.closed, self.log_normalizer)
        if target_id is None:
            return None
        mass = sum(visit.share(target_id) for visit in self.visits)
        return Proposal(target_id, min(1.0, max(mass, self.closed[target_id]) / self.root_mass))


def _largest(values: FloatArray, num: int) -> npt.NDArray[np.int64]:
    """Return the positions of the `num` largest values, in no order."""
    if values.size <= num:
        return np.arange(values.size)
    return np.argpartition(values, values.size - num)[values.size - num :]


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
