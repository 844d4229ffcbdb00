"""Checks that draft passes with rollbacks have the distributions of the whole text."""

import random
from typing import Any

import torch

from uag.drafting import Passes
from uag.projection import DraftRow, Feed, Node, link


def check_rollbacks(passes: Passes, model: Any, num_passes: int, tolerance: float) -> None:
    """Let two rows go back by random numbers of tokens, and go on with one or several others.

    Args:
        passes: the draft passes.
        model: the transformers model that computes the expected distributions without a cache.
        num_passes: number of passes, some of one row and some of both.
        tolerance: largest difference of a probability.
    """
    rng, rows, size = random.Random(5), [DraftRow(), DraftRow()], model.config.vocab_size
    passes.start(rows)

    def feed(row: int, keep: int, num_new: int) -> tuple[int, Feed]:
        nodes = [Node(None, rng.randrange(size), b"", 0) for _ in range(num_new)]
        return row, Feed(keep, link(nodes, rows[row].path[keep - 1] if keep else None))

    requests = [feed(0, 0, 1), feed(1, 0, 23)]
    for _ in range(num_passes):
        passes.feed(requests)
        for row, _ in requests:
            path = rows[row].path
            with torch.no_grad():
                logits = model(torch.tensor([[node.draft_id for node in path]])).logits[0, -1]
            assert path[-1].probs is not None
            difference = float((torch.from_numpy(path[-1].probs) - logits.softmax(-1)).abs().max())
            assert difference <= tolerance, (row, len(path))
        requests = [
            feed(row, max(1, len(rows[row].path) - rng.choice([0, 0, 1, 2, 5, 12])), rng.choice([1, 1, 1, 3, 12]))
            for row in rng.choice([[0], [1], [0, 1]])
        ]
