"""One sequence of a draft that has the target's own tokenizer."""

from collections.abc import Generator, Sequence

from uag.drafting.models.passes import KEPT_POSITIONS
from uag.projection import Feed, Node, Scoring, Search, forget_before, link, shortlist
from uag.proposal import Proposal
from uag.sampling import draw, proposal_probs


class SharedRow:
    """A row whose draft has the target's own tokenizer: ids are shared."""

    def __init__(self, prompt_ids: Sequence[int], prefix_ids: Sequence[int]) -> None:
        self.ids: list[int] = list(prompt_ids) or list(prefix_ids)
        self.path: list[Node] = []
        self._num_committed = 0
        self._first = 0

    def next_target(self, scoring: Scoring) -> Search:
        """Propose the draft's best-scored token."""
        if not scoring.may_feed and len(self.ids) > self._first + len(self.path):
            return None
        yield from self._catch_up()
        node = self.path[-1]
        probs = node.valid_probs
        if probs is None:
            return None
        if scoring.uniform is not None:
            draft_probs = proposal_probs(probs, scoring.vocab_size, scoring.warpers, scoring.seen, node.log_normalizer)
            if draft_probs is None:
                return None
            drawn = draw(draft_probs, scoring.uniform)
            return Proposal(drawn, float(draft_probs[drawn]), draft_probs=draft_probs)
        size = min(probs.size, scoring.vocab_size)
        if scoring.is_plain and not scoring.is_noisy:
            best: int | None = int(probs[:size].argmax())
        else:
            ids = shortlist(scoring, probs[:size])
            best = scoring.choose(dict(zip(ids.tolist(), probs[ids].tolist(), strict=True)), node.log_normalizer)
        return None if best is None else Proposal(best, float(probs[best]))

    def _catch_up(self) -> Generator[Feed, None, None]:
        fed, last = len(self.path), self.path[-1] if self.path else None
        if wanted := self.ids[self._first + fed :]:
            yield Feed(fed, _nodes(wanted, last))
        elif last is not None and last.probs is None:
            yield Feed(fed - 1, [last])

    def commit(self, target_id: int) -> bool:
        """Append a candidate."""
        self.ids.append(target_id)
        self._num_committed += 1
        return True

    def accept(self, num_accepted: int, output_ids: Sequence[int]) -> None:
        """Replace the rejected candidates with the target's own tokens."""
        keep = len(self.ids) - self._num_committed + num_accepted
        del self.ids[keep:]
        self.ids += output_ids[num_accepted:]
        self._num_committed = 0
        del self.path[max(0, keep - self._first) :]
        forget_before(self.path, KEPT_POSITIONS - 1)

    def num_to_feed(self) -> int:
        """Return the number of tokens that the draft has not read."""
        return len(self.ids) - self._first - len(self.path)

    def rewindow(self, num_kept: int) -> None:
        """Restart the draft's context with its last `num_kept` tokens."""
        self._first = max(0, len(self.ids) - num_kept)
        self.path.clear()

    def queued_ids(self) -> list[int]:
        """Return the ids within the draft's context before anything is fed."""
        return self.ids[self._first :]

    def adopt(self, num_fed: int) -> None:
        """Mark the first `num_fed` queued tokens as fed, without distributions; at least one must stay queued."""
        self.path = _nodes(self.queued_ids()[:num_fed], None)


def _nodes(ids: Sequence[int], parent: Node | None) -> list[Node]:
    """Return a chain of nodes; without projection, nothing reads their text."""
    return link([Node(None, draft_id, b"", 0) for draft_id in ids], parent)
