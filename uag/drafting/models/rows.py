"""The rows of a draft model: one sequence each, in the target's and the draft's tokenization."""

from collections.abc import Sequence
from typing import Any

from uag.adapters import TokenizerAdapter
from uag.drafting.models.base import KEPT_POSITIONS
from uag.drafting.models.cross_row import CrossRow
from uag.drafting.models.open_draft import is_encoder_decoder
from uag.projection import Feed, Node, Projection, Scoring, Search, TokenizerPair, forget_before, link, shortlist
from uag.proposal import Proposal
from uag.sampling import draw, proposal_probs

_POSITION_MARGIN = 64  # positions of the draft's context that are reserved for one round


class SharedRow:
    """A row whose draft has the target's own tokenizer: ids are shared. Its methods are those of `CrossRow`."""

    def __init__(self, prompt_ids: Sequence[int], prefix_ids: Sequence[int]) -> None:
        self.ids: list[int] = list(prompt_ids) or list(prefix_ids)
        self.path: list[Node] = []
        self._num_committed = 0
        self._first = 0

    def next_target(self, scoring: Scoring) -> Search:
        """Propose the draft's best-scored token."""
        if not scoring.may_feed and self.num_to_feed():
            return None
        if self.num_to_feed():
            last = self.path[-1] if self.path else None
            yield Feed(len(self.path), _nodes(self.ids[self._first + len(self.path) :], last))
        elif self.path[-1].probs is None:
            yield Feed(len(self.path) - 1, self.path[-1:])
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
        if scoring.is_linear and not scoring.is_noisy:
            best: int | None = int(probs[:size].argmax())
        else:
            ids = shortlist(scoring, probs[:size])
            best = scoring.choose(dict(zip(ids.tolist(), probs[ids].tolist(), strict=True)), node.log_normalizer)
        return None if best is None else Proposal(best, float(probs[best]))

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
        self._first = max(0, len(self.ids) - num_kept)
        self.path.clear()

    def queued_ids(self) -> list[int]:
        """Return the ids within the draft's context that are not fed."""
        return self.ids[self._first + len(self.path) :]

    def adopt(self, num_fed: int) -> None:
        self.path += _nodes(self.queued_ids()[:num_fed], self.path[-1] if self.path else None)


def _nodes(ids: Sequence[int], parent: Node | None) -> list[Node]:
    """Return a chain of nodes; without projection, nothing reads their text."""
    return link([Node(None, draft_id, b"", 0) for draft_id in ids], parent)


Row = CrossRow | SharedRow


class RowMaker:
    """Creates the rows of a pair: cross-tokenizer rows, or rows of shared ids, also without a pair."""

    def __init__(self, model: Any, pair: TokenizerPair | None) -> None:
        self.projection = None if pair is None or pair.maps.is_identity else Projection(pair)
        self.strategy = "cross-tokenizer" if self.projection else "shared-vocabulary"
        self.prefix_ids = prefix_ids(model, None if pair is None else pair.draft)

    def make(self, prompt_ids: Sequence[int]) -> Row:
        """Return the row of a sequence with the target ids `prompt_ids`; nothing is fed yet."""
        if self.projection is None:
            return SharedRow(prompt_ids, self.prefix_ids)
        row = CrossRow(self.projection, prompt_ids, self.prefix_ids)
        if row.forced:
            return row
        # An empty prompt, and a tokenizer that adds no tokens: the draft needs one to condition on.
        controls = self.projection.draft.controls
        known = (controls.bos_id, controls.eos_id, controls.pad_id, controls.unk_id)
        prefix_id = next((token_id for token_id in known if token_id is not None), 0)
        return CrossRow(self.projection, prompt_ids, (prefix_id,))


def prefix_ids(model: Any, draft: TokenizerAdapter | None) -> tuple[int, ...]:
    """Return the draft ids that every sequence of the draft starts with; usually BOS."""
    if is_encoder_decoder(model):
        config = model.generation_config
        start = config.decoder_start_token_id
        return (start if isinstance(start, int) else config.bos_token_id or 0,)
    if draft is None:
        bos = model.generation_config.bos_token_id
        return (bos,) if isinstance(bos, int) else (0,)
    return draft.prefix_ids


def fit_context(row: Row, max_positions: int) -> None:
    """Shorten a row's context to its last tokens if another round would exceed the draft's positions."""
    margin = min(_POSITION_MARGIN, max_positions // 4)
    if len(row.path) + row.num_to_feed() + margin > max_positions:
        row.rewindow(max_positions // 2)
