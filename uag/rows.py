"""One sequence in two tokenizations: what the target committed, and what the draft was fed.

Both kinds of row answer the same three calls: `next_target` proposes a token, `commit` takes it as a candidate,
`accept` says what the target made of the candidates.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Protocol

from uag.adapters.base import Place
from uag.law import ProposalLaw
from uag.projection import Projection, num_unfinished
from uag.rejection import draw, proposal_law
from uag.tree import DraftRow, Feed, Node, Proposal, Search, link

_KEPT_NODES = 8


class Row(Protocol):
    """What the drafter needs of a sequence."""

    path: list[Node]

    def next_target(self, law: ProposalLaw) -> Search:
        """Propose the next target token; yields the draft passes it needs."""
        ...

    def commit(self, target_id: int) -> bool:
        """Take a proposal as a candidate; False where nothing can follow it in this round."""
        ...

    def accept(self, num_accepted: int, output_ids: Sequence[int]) -> None:
        """Keep the first `num_accepted` candidates, then append the rest of this round's `output_ids`."""
        ...

    def num_to_feed(self) -> int:
        """Draft tokens that are sure to be fed before the next proposal, about."""
        ...

    def rewindow(self, num_kept: int) -> None:
        """Start the draft's context anew with its last `num_kept` tokens."""
        ...

    def queued_ids(self) -> list[int]:
        """Return the draft ids that a new row waits to be fed."""
        ...

    def adopt(self, num_fed: int) -> None:
        """Take the first `num_fed` queued tokens of a new row as fed: a cache holds them already."""
        ...


class CrossRow(DraftRow):
    """A row whose draft has another tokenizer.

    Args:
        projection: the pair's projection.
        prompt_ids: the target's prompt, without padding.
        prefix_ids: draft ids that every sequence of the draft starts with (BOS, decoder start).
    """

    def __init__(self, projection: Projection, prompt_ids: Sequence[int], prefix_ids: Sequence[int]) -> None:
        super().__init__()
        self.projection = projection
        self._marks: list[int] = []
        self._has_text = False
        chain = self._prompt_chain(prompt_ids)
        if [node.draft_id for node in chain[: len(prefix_ids)]] != list(prefix_ids):
            chain = [Node(None, draft_id, b"", 0) for draft_id in prefix_ids] + chain
        self.forced = link(chain)

    def _prompt_chain(self, prompt_ids: Sequence[int]) -> list[Node]:
        chain: list[Node] = []
        maps = self.projection.maps
        segment = bytearray()
        for target_id in prompt_ids:
            piece = maps.target_bytes[target_id] if target_id < len(maps.target_bytes) else b""
            if piece is not None:
                segment += piece
                if piece:
                    self.last_target_text = piece
                continue
            chain += self._text_chain(bytes(segment), chain)
            segment.clear()
            self.last_target_text = b""
            chain += [Node(None, i, b"", len(self.text)) for i in maps.control_to_draft.get(target_id, ())]
        return chain + self._text_chain(bytes(segment), chain)

    def _text_chain(self, segment: bytes, before: list[Node]) -> list[Node]:
        if not segment:
            return []
        draft = self.projection.draft
        offset = len(self.text)
        self.text += segment
        # A control token that the draft lacks became text or nothing: then this is the draft's start, or goes on.
        place = Place.START if not self._has_text else Place.CONTINUATION
        if before and self._has_text and before[-1].draft_id in draft.controls.control_ids:
            place = Place.AFTER_CONTROL
        self._has_text = True
        dummy = draft.prefix(segment, place)
        skip = len(dummy)
        ids = draft.encode_continuation(dummy + segment)
        nodes = []
        for draft_id in ids:
            piece = self.projection.maps.draft_bytes[draft_id] or b""
            cut = min(skip, len(piece))
            skip -= cut
            piece = piece[cut:]
            offset += len(piece)
            nodes.append(Node(None, draft_id, piece, offset))
        if b"".join(node.text for node in nodes) != segment:
            # The draft cannot hold this text exactly: its tokens stand for it whole, and no search steps into it.
            for node in nodes:
                node.text, node.end = b"", len(self.text)
        return nodes

    def next_target(self, law: ProposalLaw) -> Search:
        """Propose by projection; see `Projection.next_target`."""
        return self.projection.next_target(self, law)

    def commit(self, target_id: int) -> bool:
        """Append a candidate's bytes to the text; a control token ends the round."""
        self._marks.append(len(self.text))
        piece = self.projection.maps.target_bytes[target_id]
        if piece is None:
            return False
        self.text += piece
        self.last_target_text = piece
        # The search may have ended on another branch than the one it chose.
        self.truncate_path(self._marks[-1])
        return True

    def accept(self, num_accepted: int, output_ids: Sequence[int]) -> None:
        """Cut the text back to the accepted candidates and append what the target wrote instead."""
        if num_accepted < len(self._marks):
            del self.text[self._marks[num_accepted] :]
        self._marks.clear()
        valid = len(self.text)
        maps = self.projection.maps
        controls: list[tuple[int, tuple[int, ...]]] = []
        for position, target_id in enumerate(output_ids):
            piece = maps.target_bytes[target_id] if target_id < len(maps.target_bytes) else b""
            if piece is None:
                self.last_target_text = b""
                controls.append((len(self.text), maps.control_to_draft.get(target_id, ())))
                continue
            if position >= num_accepted:
                self.text += piece
            self.last_target_text = piece
        self.truncate_path(valid)
        if controls:
            self._force_controls(controls)
        if self.path:
            self.forget_before(len(self.path) - self.tail() + _KEPT_NODES)

    def _force_controls(self, controls: Sequence[tuple[int, tuple[int, ...]]]) -> None:
        """Queue control tokens that the target wrote, each behind the text that precedes it."""
        if not self.forced:
            keep = len(self.path)
            while keep > 1 and self.path[keep - 1].end > controls[0][0]:
                keep -= 1
            del self.path[keep:]
        for offset, draft_ids in controls:
            self._force_text(offset)
            self.forced += [Node(None, i, b"", offset) for i in draft_ids]
        link(self.forced, self.path[-1] if self.path else None)

    def _force_text(self, end: int) -> None:
        """Queue the text that no draft token covers yet, up to offset `end`."""
        nodes = self.forced or self.path
        start = nodes[-1].end if nodes else 0
        text = bytes(self.text[start:end])
        if text:
            ids = self.projection.draft.encode_continuation(text)
            chain = self.projection.draft_nodes(None, text, end) or [Node(None, i, b"", end) for i in ids]
            self.forced += chain

    def num_to_feed(self) -> int:
        """Tokens queued, and the most that the pending bytes can become."""
        nodes = self.forced or self.path
        covered = nodes[-1].end if nodes else 0
        return len(self.forced) + max(0, len(self.text) - covered) + 1

    def rewindow(self, num_kept: int) -> None:
        """Start the draft's context anew with its last `num_kept` tokens."""
        if self.path:
            del self.path[self.tail() + 1 :]
        self._force_text(len(self.text) - num_unfinished(self.text))
        nodes = self.path + self.forced
        prefix = nodes[:1] if nodes and not nodes[0].text else []
        kept = prefix + nodes[max(len(prefix), len(nodes) - num_kept) :]
        self.forced = link([Node(None, node.draft_id, node.text, node.end) for node in kept])
        self.path.clear()
        self.barrier = 0

    def queued_ids(self) -> list[int]:
        """Return the draft ids of the prompt, before anything was fed."""
        return [node.draft_id for node in self.forced]

    def adopt(self, num_fed: int) -> None:
        """Take the first `num_fed` queued tokens as fed, without distributions: at least one must stay queued."""
        self.path, self.forced = self.forced[:num_fed], self.forced[num_fed:]
        self.barrier = max((node.depth for node in self.path if not node.text), default=0)


class SharedRow:
    """A row whose draft has the target's own tokenizer: ids are taken over as they are."""

    def __init__(self, prompt_ids: Sequence[int], prefix_ids: Sequence[int]) -> None:
        self.ids: list[int] = list(prompt_ids) or list(prefix_ids)
        self.path: list[Node] = []
        self._num_committed = 0
        self._first = 0

    def next_target(self, law: ProposalLaw) -> Search:
        """Propose the draft's best-scored token."""
        if not law.may_feed and len(self.ids) > self._first + len(self.path):
            return None
        yield from self._catch_up()
        node = self.path[-1]
        probs = node.probs
        if probs is None:
            return None
        if law.uniform is not None:
            drawn_from = proposal_law(probs, law.vocab_size, law.warpers, law.seen, node.log_normalizer)
            if drawn_from is None:
                return None
            drawn = draw(drawn_from, law.uniform)
            return Proposal(drawn, float(drawn_from[drawn]), drawn_from)
        size = min(probs.size, law.vocab_size)
        weighed = probs if law.inverse_noise is None else probs[:size] * law.inverse_noise[:size]
        best = int(weighed[:size].argmax())
        if not law.is_plain:
            shortlist = set(law.shortlist(probs[:size], weighed[:size]))
            chosen = law.choose({i: float(probs[i]) for i in shortlist}, node.log_normalizer)
            if chosen is None:
                return None
            best = chosen
        return Proposal(best, float(probs[best]))

    def _catch_up(self) -> Generator[Feed, None, None]:
        fed = len(self.path)
        wanted = self.ids[self._first + fed :]
        if wanted:
            parent = self.path[-1] if self.path else None
            yield Feed(fed, link([Node(None, i, b"", fed + k + 1) for k, i in enumerate(wanted)], parent))
        elif self.path and self.path[-1].probs is None:
            last = self.path[-1]
            yield Feed(fed - 1, [last])

    def commit(self, target_id: int) -> bool:
        """Append a candidate."""
        self.ids.append(target_id)
        self._num_committed += 1
        return True

    def accept(self, num_accepted: int, output_ids: Sequence[int]) -> None:
        """Replace the rejected candidates by what the target wrote."""
        keep = len(self.ids) - self._num_committed + num_accepted
        del self.ids[keep:]
        self.ids += output_ids[num_accepted:]
        self._num_committed = 0
        del self.path[max(0, keep - self._first) :]
        position = len(self.path) - _KEPT_NODES
        while position >= 0 and self.path[position].probs is not None:
            self.path[position].forget()
            position -= 1

    def num_to_feed(self) -> int:
        """Tokens that the draft has not seen."""
        return len(self.ids) - self._first - len(self.path)

    def rewindow(self, num_kept: int) -> None:
        """Start the draft's context anew with its last `num_kept` tokens."""
        self._first = max(0, len(self.ids) - num_kept)
        self.path.clear()

    def queued_ids(self) -> list[int]:
        """Return the ids within the draft's window, before anything was fed."""
        return self.ids[self._first :]

    def adopt(self, num_fed: int) -> None:
        """Take the first `num_fed` queued tokens as fed, without distributions: at least one must stay queued."""
        self.path = link([Node(None, i, b"", k) for k, i in enumerate(self.queued_ids()[:num_fed], start=1)])
