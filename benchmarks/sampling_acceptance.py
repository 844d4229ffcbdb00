"""First-token acceptance of sampled candidates, per position, beside what is possible.

    python benchmarks/sampling_acceptance.py [--positions 120] [--draws 16] [--pairs demo TARGET:DRAFT ...]

Columns, each a mean over positions of plain sampling's own text at temperature 1.0:

- ours: share of noise draws for which uag's proposal is the token that the target selects with that noise;
- coupling: `sum_t 1 / sum_j max(p_j/p_t, q_j/q_t)`, what shared noise reaches if the draft's law q of the first target
  token were known exactly (q by enumeration of all draft continuations, healing included);
- rejection: `sum(min(p, q))`, the bound of any method that uses q;
- free text: the draft writes from its own tokenization of the text so far and its text is tokenized again, sampled and
  greedy (transformers' way, without its faults);
- shared tokens: rejection sampling with the draft restricted to the tokens that both vocabularies hold; beside it the
  draft's mass on them.

The pairs are the demo pair and, where UAG_SHARED (default ../shared) has them, the six ordered pairs of the trained
stories models.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from transformers import DynamicCache
from transformers.utils import logging

from uag.adapters import from_tokenizer
from uag.bench import heldout_prompts, spread
from uag.drafting.cross_row import CrossRow
from uag.drafting.rows import fallback_prefix, prefix_ids
from uag.loading import Pair, load_pair
from uag.projection.healing import Projection
from uag.projection.scoring import ProposalLaw
from uag.projection.tree import DraftRow, Feed
from uag.projection.vocabulary import NO_TOKEN, vocabulary_map

STORIES = ("stories260K", "stories-tok105", "stories-tok361")
STORY_PROMPTS = (
    "Once upon a time",
    "Lily and Ben went to the park. They saw",
    "The little dog was sad because",
    "One day, a big bear found a red ball in the forest. He",
    "Tim had a toy car. It was",
    "Sara wanted to bake a cake, but she did not have any",
)
_OPEN_MASS = 2e-3
"""Continuations that hold less than this together are settled by their text alone."""

_MAX_LEVELS = 12
_BATCH = 128


@dataclass
class Position:
    """What was measured at one position."""

    is_aligned: bool
    ours: float
    passes: float
    coupling: float
    rejection: float
    free_sampled: float
    free_greedy: float
    shared: float
    shared_mass: float


class DraftLaws:
    """The draft's next-token laws by the ids before, kept."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.known: OrderedDict[tuple[int, ...], np.ndarray] = OrderedDict()
        self._context: tuple[int, ...] = ()
        self._layers: list[tuple[torch.Tensor, torch.Tensor]] = []

    def begin(self, context: tuple[int, ...]) -> None:
        """Run a context whose continuations will be asked for."""
        self.known.clear()
        with torch.inference_mode():
            outputs = self.model(torch.tensor([context]), past_key_values=DynamicCache(), use_cache=True)
        self._layers = [(layer.keys, layer.values) for layer in outputs.past_key_values.layers]
        self._context = context
        laws = torch.softmax(outputs.logits[0].float(), -1).numpy()
        for end in range(max(1, len(context) - 8), len(context) + 1):
            self.known[context[:end]] = laws[end - 1]

    def __call__(self, ids: tuple[int, ...]) -> np.ndarray:
        """Return [draft_vocab_size] probabilities after `ids`."""
        if ids not in self.known:
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


def enumerate_law(  # noqa: C901 - one search, told in order
    projection: Projection, row: DraftRow, laws: DraftLaws, start: int, vocab_size: int
) -> np.ndarray:
    """Return the exact law of the first target token behind the row's text, over all draft continuations.

    Args:
        projection: for its maps and its rule of where a target token ends.
        row: a row whose pending tokens were fed.
        laws: the draft.
        start: position in the row's path of the last token that is taken as given.
        vocab_size: of the target.
    """
    maps, size, law = projection.maps, len(row.text), np.zeros(vocab_size)
    base = tuple(node.draft_id for node in row.path[: start + 1])
    frontier: list[tuple[tuple[int, ...], float, int, bytes]] = [(base, 1.0, row.path[start].end, b"")]
    text = bytes(row.text)
    for level in range(_MAX_LEVELS):
        laws.fill([ids for ids, _, _, _ in frontier])
        grown = []
        cutoff = 1e-6 * (law.sum() + sum(item[1] for item in frontier))
        for ids, mass, end, over in frontier:
            probs = laws(ids)
            for draft_id in _continuations(projection, probs, text[end:], cutoff / mass):
                share = float(probs[draft_id]) * mass
                piece = maps.draft_bytes[draft_id]
                if piece is None:
                    first = projection.reader.settle(over) if over else int(maps.first_target[draft_id])
                    if end >= size and first != NO_TOKEN:
                        law[first] += share
                    continue
                known = text[end : end + len(piece)]
                if piece[: len(known)] != known:
                    continue
                rest = over + piece[len(known) :]
                if end < size and rest and not projection.reader.keeps_boundary(row.last_target_text, rest):
                    continue
                first, is_closed = projection.reader.classify(rest) if rest else (NO_TOKEN, False)
                if is_closed:
                    if first != NO_TOKEN:
                        law[first] += share
                    continue
                grown.append(((*ids, draft_id), share, end + len(piece), rest))
        grown.sort(key=lambda item: -item[1])
        total = law.sum() + sum(item[1] for item in grown)
        open_mass = sum(item[1] for item in grown)
        frontier, kept = [], 0.0
        for item in grown:
            if level < _MAX_LEVELS - 1 and open_mass - kept > _OPEN_MASS * total:
                frontier.append(item)
                kept += item[1]
            elif item[3]:
                first = projection.reader.settle(item[3])
                if first != NO_TOKEN:
                    law[first] += item[1]
        if not frontier:
            break
    return law / max(law.sum(), 1e-30)


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


class Measurement:
    """One pair."""

    def __init__(self, pair: Pair, max_branches: int) -> None:
        self.pair = pair
        target, draft = from_tokenizer(pair.target_tokenizer), from_tokenizer(pair.draft_tokenizer)
        self.maps = vocabulary_map(target, draft)
        self.projection = Projection(self.maps, target, draft, max_branches=max_branches)
        self.laws = DraftLaws(pair.draft)
        self.prefix = prefix_ids(pair.draft, draft) or fallback_prefix(draft)
        self.vocab_size = int(pair.target.get_output_embeddings().weight.shape[0])
        by_bytes = {piece: i for i, piece in enumerate(self.maps.target_bytes) if piece}
        self.shared_ids = [(d, by_bytes[b]) for d, b in enumerate(self.maps.draft_bytes) if b and b in by_bytes]

    def measure(self, text: str, num_positions: int, num_draws: int, generator: torch.Generator) -> list[Position]:
        """Measure along one sampled text."""
        prompt = self.pair.target_tokenizer(text, return_tensors="pt")["input_ids"]
        torch.manual_seed(int(generator.initial_seed()) + len(text))
        ids = self.pair.target.generate(
            prompt, do_sample=True, top_k=0, max_new_tokens=num_positions, pad_token_id=0, eos_token_id=None
        )
        with torch.inference_mode():
            logits = self.pair.target(ids).logits[0].float()
        target_laws = torch.softmax(logits, -1)
        row = CrossRow(self.projection, prompt[0].tolist(), self.prefix)
        positions = []
        for place in range(prompt.shape[1], ids.shape[1]):
            whole = CrossRow(self.projection, ids[0, :place].tolist(), self.prefix)
            if self.maps.target_bytes[int(ids[0, place])] is None:
                break
            positions.append(self._position(row, whole, target_laws[place - 1], num_draws, generator))
            row.accept(0, [int(ids[0, place])])
        return positions

    def _position(
        self, row: CrossRow, whole: CrossRow, target_law: torch.Tensor, num_draws: int, generator: torch.Generator
    ) -> Position:
        laws, projection = self.laws, self.projection
        context = tuple(node.draft_id for node in (*row.path, *row.forced))
        laws.begin(context)
        run(row, laws, projection.settle_pending(row))
        tail = row.tail()
        start = max(min(row.barrier, tail), tail - 3)
        q = enumerate_law(projection, row, laws, start, self.vocab_size)
        p = target_law.double().numpy()
        is_aligned = projection._root(row).end == len(row.text)

        agreed = passes = 0
        kept = (list(row.path), row.barrier, list(row.forced), [dict(node.children) for node in row.path])
        for _ in range(num_draws):
            noise = torch.empty(self.vocab_size).exponential_(generator=generator)
            law = ProposalLaw(self.vocab_size, order=self.maps.target_sorted)
            law.inverse_noise = noise.reciprocal().numpy()
            proposal, num_passes = run(row, laws, projection.next_target(row, law))
            passes += num_passes
            chosen = int(torch.argmax(target_law / noise))
            agreed += proposal is not None and proposal.target_id == chosen
            row.path[:], row.barrier, row.forced = kept[0], kept[1], list(kept[2])
            for node, children in zip(row.path, kept[3], strict=True):
                node.children = dict(children)

        laws.begin(tuple(node.draft_id for node in whole.forced))
        run(whole, laws, projection.settle_pending(whole))
        free = enumerate_law(projection, whole, laws, len(whole.path) - 1, self.vocab_size)
        probs = whole.path[-1].probs
        shared = np.zeros(self.vocab_size)
        for draft_id, target_id in self.shared_ids:
            shared[target_id] += probs[draft_id]
        shared_mass = float(shared.sum())
        shared /= max(shared_mass, 1e-30)
        return Position(
            is_aligned,
            agreed / num_draws,
            passes / num_draws,
            coupling_value(p, q),
            float(np.minimum(p, q).sum()),
            float((p * free).sum()),
            float(p[self._greedy(whole)]),
            float(np.minimum(p, shared).sum()),
            shared_mass,
        )

    def _greedy(self, whole: CrossRow) -> int:
        ids, over = tuple(node.draft_id for node in whole.path), b""
        for _ in range(_MAX_LEVELS):
            best = int(self.laws(ids).argmax())
            piece = self.maps.draft_bytes[best]
            if piece is None:
                return self.projection.reader.settle(over) if over else int(self.maps.first_target[best])
            ids, over = (*ids, best), over + piece
            first, is_closed = self.projection.reader.classify(over)
            if is_closed:
                return first
        return self.projection.reader.settle(over)


def main() -> None:
    """Measure all pairs and print one row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--positions", type=int, default=120, help="positions per pair")
    parser.add_argument("--draws", type=int, default=16, help="noise draws per position")
    parser.add_argument("--branches", type=int, default=1, help="max_branches of the projection")
    parser.add_argument("--pairs", nargs="*", help="demo, or target:draft of the stories models; all by default")
    parser.add_argument("--output", type=Path, help="JSON lines, one per position")
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)

    table = Table("pair", "positions", "ours", "coupling", "rejection", "free s/g", "shared (mass)", "ours/coupling",
                  "aligned", "passes", title="first-token acceptance at temperature 1.0")  # fmt: skip
    lines = []
    for name, pair, texts in _pairs(arguments.pairs):
        generator = torch.Generator().manual_seed(17)
        measurement = Measurement(pair, arguments.branches)
        positions: list[Position] = []
        for text in texts:
            number = -(-arguments.positions // len(texts))
            positions += measurement.measure(text, number, arguments.draws, generator)
        lines += [json.dumps({"pair": name} | asdict(position)) + "\n" for position in positions]
        table.add_row(*_summary(name, positions))
        print("\t".join(_summary(name, positions)), flush=True)
    Console(width=160).print(table)
    if arguments.output is not None:
        arguments.output.write_text("".join(lines), encoding="utf-8")


def _summary(name: str, positions: Sequence[Position]) -> list[str]:
    def mean(column: str, chosen: Sequence[Position] = positions) -> float:
        return float(np.mean([getattr(position, column) for position in chosen]))

    aligned = [position for position in positions if position.is_aligned]
    return [
        name,
        f"{len(aligned)}/{len(positions)}",
        f"{mean('ours'):.3f}",
        f"{mean('coupling'):.3f}",
        f"{mean('rejection'):.3f}",
        f"{mean('free_sampled'):.3f}/{mean('free_greedy'):.3f}",
        f"{mean('shared'):.3f} ({mean('shared_mass'):.2f})",
        f"{mean('ours') / mean('coupling'):.3f}",
        f"{mean('ours', aligned) / mean('coupling', aligned):.3f}" if aligned else "-",
        f"{mean('passes'):.2f}",
    ]


def _pairs(wanted: Sequence[str] | None) -> Iterator[tuple[str, Pair, list[str]]]:
    if not wanted or "demo" in wanted:
        yield "demo", load_pair(dtype="float32"), [prompt.text for prompt in spread(heldout_prompts(), 6)]
    models = Path(os.environ.get("UAG_SHARED", "../shared")) / "models"
    for target, draft in itertools.permutations(STORIES, 2):
        if models.is_dir() and (not wanted or f"{target}:{draft}" in wanted):
            pair = load_pair(str((models / target).resolve()), str((models / draft).resolve()))
            yield f"{target} <- {draft}", pair, list(STORY_PROMPTS)


if __name__ == "__main__":
    main()
