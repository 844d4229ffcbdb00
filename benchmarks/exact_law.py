"""The draft's exact law of the next TARGET token, by enumeration of all its continuations, healing included."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import DynamicCache

from uag.projection import DraftRow, Feed, Projection
from uag.projection.pair import NO_TOKEN

MAX_LEVELS = 12
_OPEN_MASS = 2e-3
"""Continuations that hold less than this together are settled by their text alone."""
_BATCH = 128


class DraftLaws:
    """The draft's next-token laws by the ids before, kept."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.known: dict[tuple[int, ...], np.ndarray] = {}
        self._context: tuple[int, ...] = ()
        self._layers: list[tuple[torch.Tensor, torch.Tensor]] = []

    def begin(self, context: tuple[int, ...]) -> None:
        """Run a context whose continuations will be asked for."""
        with torch.inference_mode():
            outputs = self.model(torch.tensor([context]), past_key_values=DynamicCache(), use_cache=True)
        self._context = context
        self._layers = [(layer.keys, layer.values) for layer in outputs.past_key_values.layers]
        laws = torch.softmax(outputs.logits[0].float(), -1).numpy()
        self.known = {context[:end]: laws[end - 1] for end in range(max(1, len(context) - 8), len(context) + 1)}

    def __call__(self, ids: tuple[int, ...]) -> np.ndarray:
        """Return [draft_vocab_size] probabilities after `ids`."""
        self.fill([ids])
        return self.known[ids]

    def fill(self, wanted: Sequence[tuple[int, ...]]) -> None:
        """Run many continuations of one length in batches."""
        wanted = [ids for ids in dict.fromkeys(wanted) if ids not in self.known]
        for start in range(0, len(wanted), _BATCH):
            self._fill(wanted[start : start + _BATCH])

    def _fill(self, wanted: Sequence[tuple[int, ...]]) -> None:
        shared = 0
        while shared < min(len(self._context), len(wanted[0]) - 1) and all(
            ids[shared] == self._context[shared] for ids in wanted
        ):
            shared += 1
        cache = DynamicCache()
        for index, (keys, values) in enumerate(self._layers):
            size = (len(wanted), -1, -1, -1)
            cache.update(keys[:, :, :shared].expand(*size), values[:, :, :shared].expand(*size), index)
        with torch.inference_mode():
            outputs = self.model(torch.tensor([ids[shared:] for ids in wanted]), past_key_values=cache, use_cache=True)
        for ids, law in zip(wanted, torch.softmax(outputs.logits[:, -1].float(), -1).numpy(), strict=True):
            self.known[ids] = law


def run(row: DraftRow, laws: DraftLaws, search: Iterator[Feed]) -> tuple[Any, int]:
    """Run a search, its draft passes answered from `laws`; returns what it returns, and the number of passes."""
    num_passes = 0
    while True:
        try:
            feed = next(search)
        except StopIteration as stop:
            return stop.value, num_passes
        num_passes += 1
        del row.path[feed.keep :]
        for node in feed.nodes:
            row.path.append(node)
            node.probs = laws(tuple(n.draft_id for n in row.path))


class _Branch(NamedTuple):
    """A continuation: its draft ids, its probability, where in the row's text it ends, and what it writes behind."""

    ids: tuple[int, ...]
    mass: float
    end: int
    over: bytes


def enumerate_law(projection: Projection, row: DraftRow, laws: DraftLaws, start: int, vocab_size: int) -> np.ndarray:
    """Return the exact law of the first target token behind the row's text, over all draft continuations.

    Args:
        projection: for its maps and its rule of where a target token ends.
        row: a row whose pending tokens were fed.
        laws: the draft.
        start: position in the row's path of the last token that is taken as given.
        vocab_size: of the target.
    """
    law, text = np.zeros(vocab_size), bytes(row.text)
    frontier = [_Branch(tuple(node.draft_id for node in row.path[: start + 1]), 1.0, row.path[start].end, b"")]
    for level in range(MAX_LEVELS):
        laws.fill([branch.ids for branch in frontier])
        cutoff = 1e-6 * (law.sum() + sum(branch.mass for branch in frontier))
        grown = []
        for branch in frontier:
            probs = laws(branch.ids)
            for draft_id in _continuations(projection, probs, text[branch.end :], cutoff / branch.mass):
                share = float(probs[draft_id]) * branch.mass
                found = _append(projection, row, text, branch, draft_id, share)
                if isinstance(found, _Branch):
                    grown.append(found)
                elif found != NO_TOKEN:
                    law[found] += share
        grown.sort(key=lambda branch: -branch.mass)
        open_mass = sum(branch.mass for branch in grown)
        enough, frontier = _OPEN_MASS * (law.sum() + open_mass), []
        for branch in grown:
            if level < MAX_LEVELS - 1 and open_mass > enough:
                frontier.append(branch)
                open_mass -= branch.mass
            elif branch.over and (first := projection.reader.first_target.of_text(branch.over)) != NO_TOKEN:
                law[first] += branch.mass
    return law / max(law.sum(), 1e-30)


def _append(
    projection: Projection, row: DraftRow, text: bytes, branch: _Branch, draft_id: int, share: float
) -> int | _Branch:
    """Return the first target token that a branch and one more token settle (NO_TOKEN: none), or the longer branch."""
    piece, reader = projection.maps.draft_bytes[draft_id], projection.reader
    if piece is None:
        if branch.end < len(text):
            return NO_TOKEN
        first_target = reader.first_target
        return first_target.of_text(branch.over) if branch.over else int(first_target[draft_id])
    known = text[branch.end : branch.end + len(piece)]
    if piece[: len(known)] != known:
        return NO_TOKEN
    over = branch.over + piece[len(known) :]
    if branch.end < len(text) and over and not reader.keeps_boundary(row.last_target_text, over):
        return NO_TOKEN
    if over and not reader.maps.target_sorted.has_longer(over):
        return int(reader.first_target.of_text(over))
    return _Branch((*branch.ids, draft_id), share, branch.end + len(piece), over)


def _continuations(projection: Projection, probs: np.ndarray, pending: bytes, cutoff: float) -> list[int]:
    """Return the draft tokens that agree with the pending bytes; all probable ones where none are pending."""
    if not pending:
        return np.flatnonzero(probs > cutoff).tolist()
    order = projection.maps.draft_sorted
    low, high = order.prefix_range(pending)
    ids = order.ids[low:high].tolist()
    for length in range(1, min(len(pending), order.max_length + 1)):
        low, high = order.exact_range(pending[:length])
        ids += order.ids[low:high].tolist()
    return ids


def coupling_value(target_law: np.ndarray, draft_law: np.ndarray) -> float:
    """Return `sum_t 1 / sum_j max(p_j/p_t, q_j/q_t)`: the chance that both pick one token with one noise."""
    both = np.flatnonzero((target_law > 0) & (draft_law > 0))
    with np.errstate(divide="ignore"):
        order = np.argsort(-np.where(draft_law > 0, target_law / np.maximum(draft_law, 1e-300), np.inf), kind="stable")
    above, below = np.cumsum(target_law[order]), 1.0 - np.cumsum(draft_law[order])
    place = np.empty(order.size, dtype=np.int64)
    place[order] = np.arange(order.size)
    # Tokens of a higher ratio count by p, the others by q; ties give the same either way.
    at = place[both]
    sums = above[at] / target_law[both] + np.maximum(below[at], 0.0) / draft_law[both]
    return float((1.0 / sums).sum())
