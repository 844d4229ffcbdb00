"""What a pass carries beside its own continuation saves passes and changes no proposal."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

import uag
from tests.support.models import tiny_draft, tiny_target
from uag.projection import DraftRow, Node, Scoring
from uag.projection.frontier import OpenChild, Queue
from uag.projection.requests import Requests


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_same_candidates_with_fewer_passes(name: str, temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    target, tokenizer = tiny_target(name)
    draft, draft_tokenizer = tiny_draft(name)
    rng = random.Random(3)
    ids = torch.tensor([[rng.randrange(20, 200) for _ in range(12)] for _ in range(2)])
    options = {"max_new_tokens": 24, "do_sample": temperature > 0, "attention_mask": torch.ones_like(ids)}
    found = []
    for most in (0, 3):
        monkeypatch.setattr("uag.drafting.models.torch_draft._MOST_SIDE", most)
        assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=4, prompt_lookup=False)
        torch.manual_seed(5)
        output = assistant.generate(target, ids, **options).tolist()
        stats = assistant.stats
        found.append((output, stats.candidates_by_position, stats.accepted_by_position, stats.num_draft_forwards))
    assert found[0][:3] == found[1][:3]
    assert found[1][3] < found[0][3]


def test_a_node_that_was_asked_for_stays_so_when_a_pass_carries_what_follows_it() -> None:
    """Two branches in turn: what is carried behind the first is taken, and then the first itself."""
    toy = TinyMaps()
    root = Node(None, 0, b"", 0)
    root.probs = np.full(4, 0.25, dtype=np.float32)
    row = DraftRow(path=[root])
    requests = Requests(toy, row, Scoring(4), root, max_side=3)  # type: ignore[arg-type]
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
    behind = first.children[2]
    assert (first.is_carried, behind.is_carried) == (False, True)
    requests.take(behind)
    assert row.path == [root, first, behind]
    assert not behind.is_carried
    requests.take(first)  # nothing is missing: nothing happens
    assert row.path == [root, first, behind]


class TinyMaps:
    draft_bytes = (b"", b"a", b"b", b"c")
    target_bytes = (b"", b"a", b"b", b"c")


@pytest.mark.parametrize("max_branches", [2, 4])
def test_several_branches(max_branches: int) -> None:
    for name in ("llama", "qwen3", "gpt2"):
        target, tokenizer = tiny_target(name)
        draft, draft_tokenizer = tiny_draft(name)
        assistant = uag.Assistant(
            draft, draft_tokenizer, tokenizer, num_candidate_tokens=5, prompt_lookup=False, max_branches=max_branches
        )
        for seed in range(3):
            ids = torch.randint(20, 200, (2, 9), generator=torch.Generator().manual_seed(seed))
            options = {"max_new_tokens": 20, "do_sample": True, "attention_mask": torch.ones_like(ids)}
            torch.manual_seed(seed)
            expected = target.generate(ids, **options)
            torch.manual_seed(seed)
            assert assistant.generate(target, ids, **options).equal(expected)
