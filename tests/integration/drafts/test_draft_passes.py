"""Draft passes of several rows: each token's distribution is the same as alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support.grids import covering
from tests.support.models import tiny_target
from tests.support.rollbacks import check_rollbacks
from uag.drafting import TorchPasses
from uag.projection import DraftRow, Feed, Node, link

BAD = 77

NAMES = ["llama", "qwen3", "gpt_neox", "gpt2", "gemma3", "mistral"]


def uncompiled(model: Any) -> TorchPasses:
    """Return passes over a static cache that run as they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", lambda forward, **_: forward)
        draft = TorchPasses(model, is_static=True, is_compiled=True)
        draft.start([DraftRow()])
    return draft


@covering("name, num_rows, kind", NAMES, (1, 3), (TorchPasses, uncompiled))
def test_every_token_sees_its_ancestors_only(
    kind: Callable[[Any], TorchPasses], name: str, num_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uag.drafting.models.graphed._SMALLEST", 16)  # so that the cache has to grow
    model, _ = tiny_target(name)
    draft = kind(model)
    for num_passes in (7, 2)[: 1 + (kind is uncompiled)]:  # its second call finds the cache of the first
        check_rollbacks(draft, model, num_passes, 2e-5, num_rows)
        draft.release()


@pytest.mark.parametrize("kind", [TorchPasses, uncompiled])
@pytest.mark.parametrize("num_rows", [1, 2])
def test_padding_and_rejections_that_overflow_change_nothing(kind: Callable[[Any], TorchPasses], num_rows: int) -> None:
    """Slots behind the mask have weight 0, but 0 times NaN is NaN."""
    model, _ = tiny_target("llama")
    embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.detach().clone())
    with torch.no_grad():
        embeddings.weight[[0, BAD]] = torch.nan
    draft, rows = kind(model), [DraftRow() for _ in range(num_rows)]
    draft.start(rows)

    def feed(row: int, keep: int, *ids: int) -> tuple[int, Feed]:
        nodes = [Node(None, i, b"", 0) for i in ids]
        return row, Feed(keep, link(nodes, rows[row].path[keep - 1] if keep else None))

    prompts, second = [(5, 9, 14, 3, 27), (8, 6)][:num_rows], [(7,), (40,)][:num_rows]
    draft.feed([feed(row, 0, *ids) for row, ids in enumerate(prompts)])
    for _ in range(2):
        draft.feed([feed(0, 5, BAD, BAD)])
        draft.feed([feed(row, len(prompts[row]), *ids) for row, ids in enumerate(second)])
        for row in rows:
            with torch.no_grad():
                probs = model(torch.tensor([[node.draft_id for node in row.path]])).logits[0, -1].float().softmax(-1)
            found = row.path[-1].probs
            assert found is not None
            assert float((torch.from_numpy(found) - probs).abs().max()) < 2e-5


@pytest.mark.parametrize("kind", [TorchPasses, uncompiled])
def test_tokens_that_overflow_leave_the_next_call_alone(kind: Callable[[Any], TorchPasses]) -> None:
    """A static cache is kept, with the slots of the last call."""
    model, _ = tiny_target("llama")
    with torch.no_grad():
        model.get_output_embeddings().weight = torch.nn.Parameter(model.get_output_embeddings().weight.detach().clone())
        model.get_input_embeddings().weight[BAD] = torch.nan
    draft, ids = kind(model), [5, 9, 14]
    for prompt in ([3, 27, 5, 9, BAD], ids):
        row = DraftRow()
        draft.start([row])
        draft.feed([(0, Feed(0, link([Node(None, i, b"", 0) for i in prompt])))])
        draft.release()
    with torch.no_grad():
        probs = model(torch.tensor([ids])).logits[0, -1].float().softmax(-1)
    found = row.path[-1].probs
    assert found is not None
    assert float((torch.from_numpy(found) - probs).abs().max()) < 2e-5
