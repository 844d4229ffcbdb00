"""One sequence of a draft with a different tokenizer: the target's text, and the draft tokens that were fed."""

from collections.abc import Sequence
from itertools import groupby

from uag.adapters import Place
from uag.drafting.models.base import KEPT_POSITIONS
from uag.projection import DraftRow, Node, Projection, Scoring, Search, forget_before, link, num_unfinished


class CrossRow(DraftRow):
    """A row whose draft has a different tokenizer; `prefix_ids` are the draft's at every start (BOS)."""

    def __init__(self, projection: Projection, prompt_ids: Sequence[int], prefix_ids: Sequence[int]) -> None:
        super().__init__()
        self.projection = projection
        self._marks: list[int] = []
        chain: list[Node] = []
        for is_control, ids in groupby(prompt_ids, lambda target_id: self._piece(target_id) is None):
            if is_control:
                for target_id in ids:
                    chain += self._control_nodes(target_id, len(self.text))
                self.last_target_text = b""
            elif pieces := [piece for target_id in ids if (piece := self._piece(target_id))]:
                chain += self._text_nodes(b"".join(pieces), chain)
                self.last_target_text = pieces[-1]
        if [node.draft_id for node in chain[: len(prefix_ids)]] != list(prefix_ids):
            chain = [Node(None, draft_id, b"", 0) for draft_id in prefix_ids] + chain
        self.forced = link(chain)

    def _piece(self, target_id: int) -> bytes | None:
        """Return the bytes of a target id: None for a control token, none for an id that the tokenizer lacks."""
        table = self.projection.maps.target_bytes
        return table[target_id] if 0 <= target_id < len(table) else b""

    def _control_nodes(self, target_id: int, end: int) -> list[Node]:
        draft_ids = self.projection.maps.control_to_draft.get(target_id, ())
        return [Node(None, draft_id, b"", end) for draft_id in draft_ids]

    def _text_nodes(self, segment: bytes, before: list[Node]) -> list[Node]:
        """Append a segment of the prompt to the text, and return its draft tokens."""
        draft = self.projection.draft
        # A control token that the draft lacks is dropped, so the text starts the draft's context or continues it.
        place = Place.CONTINUATION if self.text else Place.START
        if self.text and before and before[-1].draft_id in draft.controls.control_ids:
            place = Place.AFTER_CONTROL
        self.text += segment
        dummy = draft.prefix(segment, place)
        nodes, _ = self.projection.encoded(None, dummy + segment, len(self.text))
        first = next((node for node in nodes if node.text), None)
        if first is not None:
            first.text = first.text[len(dummy) :]
        return nodes

    def next_target(self, scoring: Scoring) -> Search:
        """Propose by projection; see `Projection.next_target`."""
        return self.projection.next_target(self, scoring)

    def commit(self, target_id: int) -> bool:
        """Append a candidate's bytes to the text; a control token ends the round."""
        self._marks.append(len(self.text))
        piece = self.projection.maps.target_bytes[target_id]
        if piece is None:
            return False
        self.text += piece
        self.last_target_text = piece
        # The search may have ended on a branch other than the chosen one.
        self.truncate_path(self._marks[-1])
        return True

    def accept(self, num_accepted: int, output_ids: Sequence[int]) -> None:
        """Cut the text back to the accepted candidates and append the target's own tokens."""
        if num_accepted < len(self._marks):
            del self.text[self._marks[num_accepted] :]
        self._marks.clear()
        valid = len(self.text)
        controls: list[tuple[int, int]] = []
        for position, target_id in enumerate(output_ids):
            piece = self._piece(target_id)
            if piece is None:
                controls.append((target_id, len(self.text)))
            elif position >= num_accepted:
                self.text += piece
            self.last_target_text = piece or b""
        self.truncate_path(valid)
        if controls:
            self._force_controls(controls)
        if self.path:
            forget_before(self.path, len(self.path) - self.tail() + KEPT_POSITIONS)

    def _force_controls(self, controls: Sequence[tuple[int, int]]) -> None:
        """Queue the target's control tokens, each at its offset in the text."""
        if self.path and not self.forced:
            del self.path[self.tail(controls[0][1]) + 1 :]
        for target_id, offset in controls:
            self._force_text(offset)
            self.forced += self._control_nodes(target_id, offset)
        link(self.forced, self.path[-1] if self.path else None)

    def _covered(self) -> int:
        """Return the offset in the text up to which draft tokens were fed or queued."""
        nodes = self.forced or self.path
        return nodes[-1].end if nodes else 0

    def _force_text(self, end: int) -> None:
        """Queue the text before offset `end` that no draft token covers yet."""
        text = bytes(self.text[self._covered() : end])
        if text:
            self.forced += self.projection.encoded(None, text, end)[0]

    def num_to_feed(self) -> int:
        """Return the number of queued tokens plus the maximum that the pending bytes can become."""
        return len(self.forced) + max(0, len(self.text) - self._covered()) + 1

    def rewindow(self, num_kept: int) -> None:
        """Restart the draft's context with its last `num_kept` tokens."""
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
        """Return the draft ids that must be fed before anything else."""
        return [node.draft_id for node in self.forced]

    def adopt(self, num_fed: int) -> None:
        """Mark the first `num_fed` queued tokens as fed, without distributions; at least one must stay queued."""
        self.path += self.forced[:num_fed]
        del self.forced[:num_fed]
        self.barrier = max((node.depth for node in self.path if not node.text), default=0)
