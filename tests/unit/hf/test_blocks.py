"""The short forward for models with Llama's blocks yields the model's own logits, and is used for no other models."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from tests.support.models import tiny_target
from uag.drafting import DraftModel
from uag.hf.trials.forward import blocks_of
from uag.projection import DraftRow, Feed, Node, link


def fresh(name: str) -> Any:
    return copy.deepcopy(tiny_target(name)[0])


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "mistral", "gpt2", "gpt_neox", "phi", "bloom", "gemma3"])
def test_only_models_of_this_shape_are_taken(name: str) -> None:
    assert (blocks_of(fresh(name)) is not None) == (name in ("llama", "qwen2", "qwen3", "mistral"))


def test_a_forward_that_computes_something_else_is_noticed() -> None:
    scaled = fresh("llama")
    own = type(scaled.model).forward

    class Doubled(type(scaled.model)):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            out = own(self, *args, **kwargs)
            out.last_hidden_state = out.last_hidden_state.roll(1, -1)
            return out

    scaled.model.__class__ = Doubled
    assert blocks_of(scaled) is None


def test_a_hook_or_a_replaced_forward_turns_it_off() -> None:
    model = fresh("llama")
    assert blocks_of(model) is not None
    handle = model.model.layers[1].register_forward_hook(lambda *_: None)
    assert blocks_of(model) is None
    handle.remove()
    assert blocks_of(model) is not None
    model.model.layers[0].mlp.forward = model.model.layers[0].mlp.forward
    assert blocks_of(model) is None
    del model.model.layers[0].mlp.forward
    model.train()
    assert blocks_of(model) is None


def worst(draft: DraftModel) -> float:
    """Feed a few tokens, then one more; return the distance of its distribution from the model's own."""
    row = DraftRow()
    draft.start([row])
    for ids in ([3, 4, 5, 6], [7]):
        parent = row.path[-1] if row.path else None
        draft.feed([(0, Feed(len(row.path), link([Node(parent, i, b"", 0) for i in ids], parent)))])
    with torch.no_grad():
        expected = torch.softmax(draft.model(torch.tensor([[3, 4, 5, 6, 7]])).logits[0, -1].float(), -1).numpy()
    found = row.path[-1].probs
    assert found is not None
    return float(abs(found - expected).max())


def test_weights_that_are_replaced_count() -> None:
    """A resized embedding, a norm that was trained further, a model converted to another dtype."""
    model = fresh("llama")
    draft = DraftModel(model)
    assert worst(draft) < 1e-5
    model.model.norm.weight = torch.nn.Parameter(2 * model.model.norm.weight.detach())
    model.model.layers[0].input_layernorm.weight.data = torch.rand(32)
    assert worst(draft) < 1e-5
    model.to(torch.bfloat16)
    assert worst(draft) < 2e-2
    model.float()
    assert worst(draft) < 1e-5


@pytest.mark.parametrize("part", ["mlp.down_proj", "input_layernorm", "self_attn.q_proj"])
def test_parts_that_are_replaced_are_noticed(part: str) -> None:
    model = fresh("llama").eval()
    draft = DraftModel(model)
    layer = model.model.layers[1]
    parent, name = (
        (layer.get_submodule(part.rpartition(".")[0]), part.rpartition(".")[2]) if "." in part else (layer, part)
    )
    other = copy.deepcopy(getattr(parent, name))
    torch.nn.init.normal_(other.weight)
    for replaced in (False, True):
        if replaced:
            setattr(parent, name, other)
        assert worst(draft) < 1e-5
