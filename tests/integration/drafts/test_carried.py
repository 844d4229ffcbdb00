"""Alternative continuations in a pass save passes and do not change proposals."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

import uag
from tests.support.models import tiny_draft, tiny_target
from uag.projection import DraftRow, Node, Scoring
from uag.projection.frontier import OpenChild, PassRequests, Queue


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("max_branches", [1, 4])
def test_the_same_candidates_with_fewer_passes(
    name: str, temperature: float, max_branches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, tokenizer = tiny_target(name)
    draft, draft_tokenizer = tiny_draft(name)
    rng = random.Random(3)
    ids = torch.tensor([[rng.randrange(20, 200) for _ in range(12)] for _ in range(2)])
    options = {"max_new_tokens": 24, "do_sample": temperature > 0, "attention_mask": torch.ones_like(ids)}
    torch.manual_seed(5)
    expected = target.generate(ids, **options).tolist()
    found = []
    for most in (0, 3):
        monkeypatch.setattr("uag.drafting.models.torch_draft._MOST_SIDE", most)
        given: dict[str, Any] = {"num_candidate_tokens": 4, "prompt_lookup": False, "max_branches": max_branches}
        assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, **given)
        torch.manual_seed(5)
        assert assistant.generate(target, ids, **options).tolist() == expected
        stats = assistant.stats
        found.append((stats.candidates_by_position, stats.accepted_by_position, stats.num_draft_forwards))
    assert found[0][:2] == found[1][:2]
    assert found[1][2] < found[0][2]


def test_a_node_that_was_asked_for_stays_so_when_a_pass_carries_what_follows_it() -> None:
    """Two branches alternate: a node carried after the first is taken, and then the first itself."""
    toy = TinyMaps()
    root = Node(None, 0, b"", 0)
    root.probs = np.full(4, 0.25, dtype=np.float32)
    row = DraftRow(path=[root])
    requests = PassRequests(toy, row, Scoring(4), root, max_side=3)  # type: ignore[arg-type]
    queue: Queue = []

    def ask(parent: Node, draft_id: int) -> Node:
        feed = requests.request(OpenChild(parent, draft_id, 0.5, b""), queue, 0.0, None)
        del row.path[feed.keep :]
        row.path += feed.nodes
        for node in feed.nodes + feed.side:
            node.probs = root.probs
        return feed.nodes[-1]

    first = ask(root, 1)
    queue.append((-0.4, 0, OpenChild(first, 2, 0.4, b"")))
    ask(root, 3)  # leaves the first's branch, and carries what follows it
    second = first.children[2]
    assert (first.is_carried, second.is_carried) == (False, True)
    requests.take(second)
    assert row.path == [root, first, second]
    assert not second.is_carried
    requests.take(first)  # nothing is missing: nothing happens
    assert row.path == [root, first, second]


class TinyMaps:
    draft_bytes = (b"", b"a", b"b", b"c")
    target_bytes = (b"", b"a", b"b", b"c")
