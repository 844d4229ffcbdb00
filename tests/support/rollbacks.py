"""Checks that draft passes with rollbacks have the distributions of the whole text."""

import random
from typing import Any

import torch

from uag.drafting import Passes
from uag.drafting.models.base import KEPT_POSITIONS
from uag.projection import DraftRow, Feed, Node, link


def check_rollbacks(passes: Passes, model: Any, num_passes: int, tolerance: float, num_rows: int = 2) -> None:
    """Let rows go back by random numbers of tokens, and go on with one or several others."""
    rng, rows, size = random.Random(5), [DraftRow() for _ in range(num_rows)], model.config.vocab_size
    passes.start(rows)

    def feed(row: int, keep: int, num_new: int) -> tuple[int, Feed]:
        nodes = [Node(None, rng.randrange(size), b"", 0) for _ in range(num_new)]
        return row, Feed(keep, link(nodes, rows[row].path[keep - 1] if keep else None))

    requests = [feed(row, 0, num_new) for row, num_new in zip(range(num_rows), (1, 23, 4), strict=False)]
    for _ in range(num_passes):
        passes.feed(requests)
        for row, request in requests:
            path = rows[row].path
            assert path[request.keep :] == request.nodes
            with torch.no_grad():
                probs = model(torch.tensor([[node.draft_id for node in path]])).logits[0].float().softmax(-1)
            for place in range(max(request.keep, len(path) - KEPT_POSITIONS), len(path)):
                found = path[place].probs
                assert found is not None
                assert float((torch.from_numpy(found) - probs[place]).abs().max()) <= tolerance, (row, place)
        requests = [
            feed(row, max(1, len(rows[row].path) - rng.choice([0, 0, 1, 2, 5, 12])), rng.choice([1, 1, 1, 3, 12]))
            for row in sorted(rng.sample(range(num_rows), rng.randint(1, num_rows)))
        ]
