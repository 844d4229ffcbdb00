"""Draft passes over several continuations: each token's distribution is the same as alone, and passes are saved."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import uag
from tests.support.calls import compare
from tests.support.models import tiny_draft, tiny_target
from uag.drafting import DraftModel
from uag.drafting.models.static_draft import CompiledDraft
from uag.hf.trials.drafts import takes_trees
from uag.projection import DraftRow, Feed, Node, link

NUM_IDS = 200

FOLLOWS = ["llama", "qwen2", "qwen3", "phi", "gpt_neox", "gpt2"]


def uncompiled(model: Any) -> CompiledDraft:
    draft = CompiledDraft(model)
    draft._compiled = None
    return draft


def random_feed(rng: random.Random, path: list[Node], most_side: int) -> Feed:
    """Return a request that cuts and extends a path, with a random tree of alternatives."""
    keep = len(path) - (rng.randint(0, min(3, len(path) - 1)) if path else 0)
    parent = path[keep - 1] if keep else None
    nodes = link([Node(parent, rng.randrange(NUM_IDS), b"", 0) for _ in range(rng.choice([1, 1, 2, 5]))], parent)
    side: list[Node] = []
    for _ in range(rng.randint(0, most_side)):
        before = [*path[max(0, keep - 3) : keep], *nodes, *side]
        side.append(Node(rng.choice(before), rng.randrange(NUM_IDS), b"", 0))
    return Feed(keep, nodes, side)


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


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("name", FOLLOWS)
@pytest.mark.parametrize("kind", [DraftModel, uncompiled])
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
            most_side = min(4, 6 * draft.max_side(num_rows))
            requests = [(row, random_feed(rng, rows[row].path, most_side)) for row in chosen]
            if rng.random() < 0.3:
                draft.compact()
            draft.feed(requests)
            for row, feed in requests:
                assert rows[row].path[feed.keep :] == feed.nodes
                for node in [feed.nodes[-1], *feed.side]:
                    assert node.probs is not None
                    np.testing.assert_allclose(node.probs, alone(model, node), atol=2e-5)
        draft.release()


@pytest.mark.parametrize(("name", "follows"), [(name, True) for name in FOLLOWS] + [("bloom", False)])
def test_models_that_follow_a_mask_are_told_by_trying(name: str, follows: bool) -> None:
    model, _ = tiny_target(name)
    assert takes_trees(model) is follows


@pytest.mark.parametrize("error", [None, KeyError, NotImplementedError, ZeroDivisionError])
def test_a_draft_that_ignores_such_a_mask_or_fails_on_it_drafts_without_trees(
    error: type[Exception] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = tiny_target("llama")
    model = copy.deepcopy(model)
    forward = model.forward

    def strict(*args: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
        if attention_mask is not None and attention_mask.dim() == 4:
            if error is not None:
                raise error(attention_mask.dim())
            attention_mask = None
        return forward(*args, attention_mask=attention_mask, **kwargs)

    monkeypatch.setattr(model, "forward", strict)
    assert not takes_trees(model)
    assistant = uag.Assistant(model, tokenizer, tokenizer, num_candidate_tokens=3)
    given = {"input_ids": torch.tensor([[5, 9, 14]]), "max_new_tokens": 8, "do_sample": False}
    assert compare(tiny_target("llama")[0], given, assistant).num_accepted_tokens > 0


@pytest.mark.parametrize(("name", "max_side"), [("mistral", 0), ("llama", 3)])
def test_nothing_is_carried_close_to_a_window(name: str, max_side: int) -> None:
    draft = DraftModel(tiny_target(name)[0])
    draft.start([DraftRow()])
    draft.feed([(0, Feed(0, link([Node(None, 20, b"", 0), Node(None, 21, b"", 0)])))])
    assert draft.max_side(1) == max_side


def test_a_pass_that_carries_a_token_beyond_the_last_position_does_not_fit() -> None:
    draft = DraftModel(tiny_target("llama")[0])
    draft.max_positions = 8
    nodes = link([Node(None, 20 + i, b"", 0) for i in range(8)])
    assert draft.fits(Feed(0, nodes))
    assert not draft.fits(Feed(0, nodes, [Node(nodes[-1], 150, b"", 0)]))


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_same_candidates_with_fewer_passes(name: str, temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    target, tokenizer = tiny_target(name)
    draft, draft_tokenizer = tiny_draft(name)
    rng = random.Random(3)
    ids = torch.tensor([[rng.randrange(20, 200) for _ in range(12)] for _ in range(2)])
    given = {"input_ids": ids, "max_new_tokens": 24, "do_sample": temperature > 0}
    found = []
    for most in (0, 3):
        monkeypatch.setattr("uag.drafting.models.torch_draft._MOST_SIDE", most)
        assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=4, prompt_lookup=False)
        stats = compare(target, given, assistant, seed=5)
        found.append((stats.candidates_by_position, stats.accepted_by_position, stats.num_draft_forwards))
    assert found[0][:2] == found[1][:2]
    assert found[1][2] < found[0][2]
