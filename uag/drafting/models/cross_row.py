"""One sequence of a draft with a different tokenizer: the target's text, and the draft tokens that were fed."""

from collections.abc import Sequence

from uag.adapters import Place
from uag.drafting.models.passes import KEPT_POSITIONS
from uag.projection import DraftRow, Node, Projection, Scoring, Search, forget_before, link, num_unfinished


class CrossRow(DraftRow):
    """A row whose draft has a different tokenizer.

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
        self.text += segment
        # A control token that the draft lacks is dropped, so the text starts the draft's context or continues it.
        place = Place.START if not self._has_text else Place.CONTINUATION
        if before and self._has_text and before[-1].draft_id in draft.controls.control_ids:
            place = Place.AFTER_CONTROL
        self._has_text = True
        dummy = draft.prefix(segment, place)
        nodes = self._encoded(dummy + segment, len(self.text))
        first = next((node for node in nodes if node.text), None)
        if first is not None:
            first.text = first.text[len(dummy) :]
        return nodes

    def _encoded(self, text: bytes, end: int) -> list[Node]:
        """Encode text that ends at offset `end`; if the draft cannot represent it, no search enters its tokens."""
        exact = self.projection.draft_nodes(None, text, end)
        return exact or [Node(None, i, b"", end) for i in self.projection.draft.encode_continuation(text)]

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
            forget_before(self.path, len(self.path) - self.tail() + KEPT_POSITIONS)

    def _force_controls(self, controls: Sequence[tuple[int, tuple[int, ...]]]) -> None:
        """Queue the target's control tokens, each after the text before it."""
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
        """Queue the text before offset `end` that no draft token covers yet."""
        nodes = self.forced or self.path
        start = nodes[-1].end if nodes else 0
        text = bytes(self.text[start:end])
        if text:
            self.forced += self._encoded(text, end)

    def num_to_feed(self) -> int:
        """Return the number of queued tokens plus the maximum that the pending bytes can become."""
        nodes = self.forced or self.path
        covered = nodes[-1].end if nodes else 0
        return len(self.forced) + max(0, len(self.text) - covered) + 1

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
        """Return the draft ids of the prompt before anything is fed."""
        return [node.draft_id for node in self.forced]

    def adopt(self, num_fed: int) -> None:
        """Mark the first `num_fed` queued tokens as fed, without distributions; at least one must stay queued."""
        self.path, self.forced = self.forced[:num_fed], self.forced[num_fed:]
        self.barrier = max((node.depth for node in self.path if not node.text), default=0)
