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

import argparse
from collections.abc import Iterator, Sequence

import common
import numpy as np
import torch
from exact_law import MAX_LEVELS, DraftLaws, coupling_value, enumerate_law, run

from uag.adapters import from_tokenizer
from uag.drafting import RowMaker
from uag.drafting.models.cross_row import CrossRow
from uag.loading import Pair
from uag.projection import Scoring, TokenizerPair

COLUMNS = {
    "pair": "{pair}",
    "positions": "{num_aligned}/{num_positions}",
    "ours": "{ours:.3f}",
    "coupling": "{coupling:.3f}",
    "rejection": "{rejection:.3f}",
    "free s/g": "{free_sampled:.3f}/{free_greedy:.3f}",
    "shared (mass)": "{shared:.3f} ({shared_mass:.2f})",
    "ours/coupling": "{ratio:.3f}",
    "aligned": "{aligned_ratio:.3f}",
    "passes": "{passes:.2f}",
}
Figures = dict[str, float]


class Measurement:
    """One pair."""

    def __init__(self, pair: Pair, max_branches: int) -> None:
        self.pair = pair
        tokenizers = TokenizerPair.of(from_tokenizer(pair.target_tokenizer), from_tokenizer(pair.draft_tokenizer))
        self.rows = RowMaker(pair.draft, tokenizers, max_branches=max_branches)
        self.maps, self.projection = tokenizers.maps, self.rows.projection
        self.laws = DraftLaws(pair.draft)
        self.vocab_size = int(pair.target.get_output_embeddings().weight.shape[0])
        by_bytes = {piece: i for i, piece in enumerate(self.maps.target_bytes) if piece}
        self.shared_ids = [(d, by_bytes[b]) for d, b in enumerate(self.maps.draft_bytes) if b and b in by_bytes]

    def measure(self, text: str, num_positions: int, num_draws: int, generator: torch.Generator) -> list[Figures]:
        """Measure along one sampled text."""
        prompt = self.pair.target_tokenizer(text, return_tensors="pt")["input_ids"]
        torch.manual_seed(int(generator.initial_seed()) + len(text))
        ids = self.pair.target.generate(
            prompt, do_sample=True, top_k=0, max_new_tokens=num_positions, pad_token_id=0, eos_token_id=None
        )
        with torch.inference_mode():
            target_laws = torch.softmax(self.pair.target(ids).logits[0].float(), -1)
        row = self.rows.make(prompt[0].tolist())
        positions = []
        for place in range(prompt.shape[1], ids.shape[1]):
            if self.maps.target_bytes[int(ids[0, place])] is None:
                break
            target_law = target_laws[place - 1]
            with_row = self._along_the_row(row, target_law, num_draws, generator)
            whole = self.rows.make(ids[0, :place].tolist())
            positions.append(with_row | self._from_text(whole, target_law.double().numpy()))
            row.accept(0, [int(ids[0, place])])
        return positions

    def _along_the_row(
        self, row: CrossRow, target_law: torch.Tensor, num_draws: int, generator: torch.Generator
    ) -> Figures:
        """Return what uag reaches here and what it could reach; the row is as before, its pending tokens fed."""
        laws, projection = self.laws, self.projection
        laws.begin(tuple(node.draft_id for node in (*row.path, *row.forced)))
        run(row, laws, projection.settle_pending(row))
        tail = row.tail()
        q = enumerate_law(projection, row, laws, max(min(row.barrier, tail), tail - 3), self.vocab_size)
        p = target_law.double().numpy()
        is_aligned = projection._root(row).end == len(row.text)

        agreed = passes = 0
        kept = (list(row.path), row.barrier, list(row.forced), [dict(node.children) for node in row.path])
        for _ in range(num_draws):
            noise = torch.empty(self.vocab_size).exponential_(generator=generator)
            scoring = Scoring(self.vocab_size, noise=noise.numpy())
            proposal, num_passes = run(row, laws, projection.next_target(row, scoring))
            passes += num_passes
            agreed += proposal is not None and proposal.target_id == int(torch.argmax(target_law / noise))
            row.path[:], row.barrier, row.forced = kept[0], kept[1], list(kept[2])
            for node, children in zip(row.path, kept[3], strict=True):
                node.children = dict(children)
        own = {"is_aligned": is_aligned, "ours": agreed / num_draws, "passes": passes / num_draws}
        return own | {"coupling": coupling_value(p, q), "rejection": float(np.minimum(p, q).sum())}

    def _from_text(self, whole: CrossRow, p: np.ndarray) -> Figures:
        """Return what a draft reaches that begins from its own tokenization of the text."""
        self.laws.begin(tuple(node.draft_id for node in whole.forced))
        run(whole, self.laws, self.projection.settle_pending(whole))
        free = enumerate_law(self.projection, whole, self.laws, len(whole.path) - 1, self.vocab_size)
        shared = np.zeros(self.vocab_size)
        for draft_id, target_id in self.shared_ids:
            shared[target_id] += whole.path[-1].probs[draft_id]
        mass = float(shared.sum())
        return {
            "free_sampled": float((p * free).sum()),
            "free_greedy": float(p[self._greedy(whole)]),
            "shared": float(np.minimum(p, shared / max(mass, 1e-30)).sum()),
            "shared_mass": mass,
        }

    def _greedy(self, whole: CrossRow) -> int:
        reader, ids, over = self.projection.reader, tuple(node.draft_id for node in whole.path), b""
        for _ in range(MAX_LEVELS):
            best = int(self.laws(ids).argmax())
            piece = self.maps.draft_bytes[best]
            if piece is None:
                return reader.settle(over) if over else int(self.maps.first_target[best])
            ids, over = (*ids, best), over + piece
            first, is_closed = reader.classify(over)
            if is_closed:
                return first
        return reader.settle(over)


def main() -> None:
    """Measure all pairs and print one row for each."""
    parser = common.make_parser(__doc__, positions=120, draws=16, branches=1)
    parser.add_argument("--pairs", nargs="*", help="demo, or TARGET:DRAFT of the stories models; all by default")
    arguments = common.parse(parser)
    torch.set_num_threads(1)
    common.show(arguments, "first-token acceptance at temperature 1.0", COLUMNS, _measure(arguments))


def _measure(arguments: argparse.Namespace) -> Iterator[common.Row]:
    for folders in common.demo_and_stories(arguments.pairs):
        texts = common.texts_for(folders, 6)
        generator = torch.Generator().manual_seed(17)
        measurement = Measurement(folders.load(dtype="float32", device="cpu"), arguments.branches)
        positions: list[Figures] = []
        for text in texts:
            positions += measurement.measure(text, -(-arguments.positions // len(texts)), arguments.draws, generator)
        aligned = [position for position in positions if position["is_aligned"]]
        means = _means(positions)
        row = {"pair": folders.name, "num_positions": len(positions), "num_aligned": len(aligned)} | means
        row["ratio"] = means["ours"] / means["coupling"]
        if aligned:
            row["aligned_ratio"] = _means(aligned)["ours"] / _means(aligned)["coupling"]
        yield row | {"by_position": positions, "dtype": "float32"}


def _means(positions: Sequence[Figures]) -> Figures:
    return {name: float(np.mean([position[name] for position in positions])) for name in positions[0]}


if __name__ == "__main__":
    main()
