"""Draft passes of several rows: each token's distribution is the same as alone."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.grids import covering
from tests.support.models import tiny_target
from uag.drafting import DraftModel
from uag.drafting.models.static_draft import CompiledDraft
from uag.projection import DraftRow, Feed, Node, link

NUM_IDS = 200

NAMES = ["llama", "qwen2", "qwen3", "phi", "gpt_neox", "gpt2"]


def uncompiled(model: Any) -> CompiledDraft:
    draft = CompiledDraft(model)
    draft._compiled = None
    return draft


def random_feed(rng: random.Random, path: list[Node]) -> Feed:
    """Return a request that cuts and extends a path."""
    keep = len(path) - (rng.randint(0, min(3, len(path) - 1)) if path else 0)
    parent = path[keep - 1] if keep else None
    nodes = link([Node(parent, rng.randrange(NUM_IDS), b"", 0) for _ in range(rng.choice([1, 1, 2, 5]))], parent)
    return Feed(keep, nodes)


def alone(model: Any, node: Node) -> np.ndarray[Any, Any]:
    """Return the distribution after only a node's own ancestors."""
    ids: list[int] = []
    at: Node | None = node
    while at is not None:
        ids.append(at.draft_id)
        at = at.parent
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids[::-1]])).logits[0, -1]
    return torch.softmax(logits.float(), dim=-1).numpy()


@covering("name, num_rows, kind", NAMES, (1, 3), (DraftModel, uncompiled))
def test_every_token_sees_its_ancestors_only(
    kind: Callable[[Any], DraftModel], name: str, num_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uag.drafting.models.static_draft._SMALLEST", 16)  # so that the cache has to grow
    model, _ = tiny_target(name)
    rng = random.Random(num_rows)
    draft = kind(model)
    for _ in range(2):  # the second call of a compiled draft finds the cache of the first
        rows = [DraftRow() for _ in range(num_rows)]
        draft.start(rows)
        for _ in range(9):
            chosen = sorted(rng.sample(range(num_rows), rng.randint(1, num_rows)))
            requests = [(row, random_feed(rng, rows[row].path)) for row in chosen]
            if rng.random() < 0.3:
                draft.compact()
            draft.feed(requests)
            for row, feed in requests:
                assert rows[row].path[feed.keep :] == feed.nodes
                for node in feed.nodes:
                    assert node.probs is not None
                    np.testing.assert_allclose(node.probs, alone(model, node), atol=2e-5)
        draft.release()


def test_a_pass_beyond_the_last_position_does_not_fit() -> None:
    draft = DraftModel(tiny_target("llama")[0])
    draft.max_positions = 8
    nodes = link([Node(None, 20 + i, b"", 0) for i in range(9)])
    assert draft.fits(Feed(0, nodes[:8]))
    assert not draft.fits(Feed(0, nodes))
