"""What a trial of the short forward holds for: whoever changes a model afterwards gets what that model computes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama import modeling_llama

from tests.unit.hf.test_short import PROMPT, Counted, block, fresh, prompt_read
from uag.drafting import DraftModel
from uag.hf import blocks
from uag.hf.block_trial import blocks_of
from uag.hf.short import ShortForward


class Doubling(nn.Linear):
    """Somebody's layer, which looks at rows and tokens."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        num_rows, width, _ = x.shape
        return 2 * F.linear(x, self.weight, self.bias).view(num_rows, width, -1)


def _rotations(model: Any) -> None:
    model.model.rotary_emb.inv_freq /= 4


def _scaling(model: Any) -> None:
    for layer in model.model.layers:
        layer.self_attn.scaling *= 0.5


def _epsilon(model: Any) -> None:
    model.model.norm.variance_epsilon = 0.5


def _class_of_a_product(model: Any) -> None:
    model.model.layers[0].mlp.up_proj.__class__ = Doubling


def _forward_of_a_product(model: Any) -> None:
    layer = model.model.layers[0].self_attn.q_proj
    layer.forward = functools.partial(Doubling.forward, layer)


def _weight_as_a_buffer(model: Any) -> None:
    layer = model.model.layers[0].mlp.up_proj
    weight = layer.weight.detach()
    del layer.weight
    layer.register_buffer("weight", 2 * weight)


def _fewer_layers(model: Any) -> None:
    model.config.num_hidden_layers = 1


@torch.inference_mode()
@pytest.mark.parametrize(
    "change",
    [
        _rotations,
        _scaling,
        _epsilon,
        _class_of_a_product,
        _forward_of_a_product,
        _weight_as_a_buffer,
        _fewer_layers,
    ],
)
def test_what_is_changed_after_the_trial_counts(change: Callable[[Any], None]) -> None:
    model = fresh()
    assert ShortForward(model).is_short
    change(model)
    expected = model(input_ids=torch.tensor([PROMPT[0] + [20, 21]])).logits[:, -2:]
    cache, mask = prompt_read(model)
    found = ShortForward(model)(**block(2, 1, mask), past_key_values=cache, use_cache=True).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def _attention(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ALL_ATTENTION_FUNCTIONS["sdpa"]
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._local_mapping, "sdpa", lambda *args, **kwargs: own(*args, **kwargs))


def _rotation(monkeypatch: pytest.MonkeyPatch) -> None:
    own = modeling_llama.apply_rotary_pos_emb

    @functools.wraps(own)
    def apply_rotary_pos_emb(*args: Any, **kwargs: Any) -> Any:
        return own(*args, **kwargs)

    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", apply_rotary_pos_emb)


def _wrapped_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    own = modeling_llama.LlamaMLP.forward

    @functools.wraps(own)
    def forward(self: Any, x: torch.Tensor) -> Any:
        return own(self, x)

    monkeypatch.setattr(modeling_llama.LlamaMLP, "forward", forward)


@pytest.mark.parametrize("patch", [_attention, _rotation, _wrapped_forward])
def test_functions_of_somebody_are_heeded(
    patch: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = fresh()
    assert ShortForward(model).is_short
    with monkeypatch.context() as during:
        patch(during)
        assert not ShortForward(model).is_short
    assert ShortForward(model).is_short


@torch.inference_mode()
def test_a_window_that_the_cache_does_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fresh("mistral")
    model.config.sliding_window = 10  # more than a trial has
    model.config.layer_types = ["full_attention"] * model.config.num_hidden_layers
    cache, mask = prompt_read(model)
    forward = ShortForward(model)
    assert forward.is_short
    counted = Counted(type(model), monkeypatch)
    forward(**block(6, 1, mask), past_key_values=cache, use_cache=True)
    assert counted.num == 1


@torch.inference_mode()
def test_a_cache_with_further_layers_is_left_to_the_model() -> None:
    model, few = fresh(), fresh()
    few.config.num_hidden_layers = 1
    cache, mask = prompt_read(model)
    expected = few(input_ids=torch.tensor([PROMPT[0] + [20, 21]])).logits[:, -2:]
    found = ShortForward(few)(**block(2, 1, mask), past_key_values=cache, use_cache=True).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@torch.inference_mode()
@pytest.mark.parametrize("positions", [[[-3, -2]], [[1 << 30, (1 << 30) + 1]], [[6.5, 7.5]], [[3, 4]]])
def test_positions_of_somebody(positions: list[list[float]]) -> None:
    model = fresh()
    caches = [prompt_read(model) for _ in range(2)]
    found, expected = (
        run(**block(2, 1, mask) | {"position_ids": torch.tensor(positions)}, past_key_values=cache, use_cache=True)
        for run, (cache, mask) in zip((ShortForward(model), model), caches, strict=True)
    )
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-3, atol=1e-4)


@torch.inference_mode()
def test_rotations_of_far_positions_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_MOST_POSITIONS", 4)
    model = fresh()
    (cache, mask), (other, _) = prompt_read(model), prompt_read(model)
    counted = Counted(type(model), monkeypatch)
    forward = ShortForward(model)
    num_in_trial = counted.num
    found = forward(**block(2, 1, mask), past_key_values=cache, use_cache=True).logits
    assert counted.num == num_in_trial
    expected = model(**block(2, 1, mask), past_key_values=other, use_cache=True).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert blocks_of(model)._turns is None  # type: ignore[union-attr]


def test_asking_for_hidden_states_ends_nothing() -> None:
    """transformers leaves its hooks behind."""
    model = fresh()
    model(input_ids=torch.tensor(PROMPT[:1]), output_hidden_states=True, output_attentions=True)
    assert any(module._forward_hooks for module in model.modules())
    assert ShortForward(model).is_short


def test_a_trial_draws_no_random_numbers() -> None:
    """A fresh adapter's dropout is in training mode, whatever the model is in."""
    model = fresh()
    for layer in model.model.layers:
        layer.mlp.act_fn = nn.Sequential(layer.mlp.act_fn, nn.Dropout(0.5))
    assert not model.training
    torch.manual_seed(0)
    before = torch.get_rng_state()
    DraftModel(model)
    assert blocks_of(model) is None
    assert torch.equal(torch.get_rng_state(), before)


@torch.no_grad()
def test_a_first_call_under_autocast_decides_nothing() -> None:
    model = fresh()
    with torch.autocast("cpu", torch.bfloat16):
        assert blocks_of(model) is None
    assert blocks_of(model) is not None
