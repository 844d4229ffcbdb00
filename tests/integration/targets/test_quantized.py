"""Quantized models as targets and drafts: the output equals plain decoding's for every kind of weights."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.ao.quantization import float_qparams_weight_only_qconfig, quantize_dynamic

import uag
from tests.support.calls import GREEDY, PROMPTS, SAMPLED, assert_drafted, compare, left_padded, pair
from tests.support.grids import ROWS_AND_MODES, covering
from tests.support.kernels import needs_kernels
from uag.errors import PairError
from uag.hf import models, weights

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:uag. the target's")


def quantize(model: Any, kinds: Any, dtype: torch.dtype) -> Any:
    return quantize_dynamic(copy.deepcopy(model), kinds, dtype=dtype)  # type: ignore[no-untyped-call]


def dynamic(model: Any, dtype: torch.dtype = torch.qint8) -> Any:
    return quantize(model, {torch.nn.Linear}, dtype)


class ScaledLinear(torch.nn.Linear):
    """Rounds its input to 8 bits, with one scale per token or one for all, like libraries for large models."""

    def __init__(self, plain: torch.nn.Linear, is_per_token: bool) -> None:
        super().__init__(plain.in_features, plain.out_features, bias=plain.bias is not None)
        self.load_state_dict(plain.state_dict())
        self.is_per_token = is_per_token

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = x.abs().amax(-1, keepdim=True) if self.is_per_token else x.abs().max()
        scale = scale / 127 + 1e-12
        return super().forward((x / scale).round() * scale)


class PackedWeight(torch.Tensor):
    """A weight without values of its own, which allows products only, as torchao's do."""

    @staticmethod
    def __new__(cls, plain: torch.Tensor) -> "PackedWeight":
        return torch.Tensor._make_wrapper_subclass(cls, plain.shape, dtype=plain.dtype)

    def __init__(self, plain: torch.Tensor) -> None:
        self.plain = plain

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.linear:
            return func(args[0], args[1].plain, *args[2:])
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if func is torch.ops.aten.detach.default:
            return cls(args[0].plain)
        raise NotImplementedError(f"{func} is not implemented")


def packed(model: Any) -> Any:
    model = copy.deepcopy(model)
    for layer in model.model.layers:
        for module in (layer.mlp.up_proj, layer.self_attn.q_proj):
            module.weight = torch.nn.Parameter(PackedWeight(module.weight.detach()), requires_grad=False)
    return model


def scaled(model: Any, is_per_token: bool) -> Any:
    model = copy.deepcopy(model)
    for layer in model.model.layers:
        layer.mlp.up_proj = ScaledLinear(layer.mlp.up_proj, is_per_token)
    return model.eval()


def check(target: Any, num_rows: int, options: dict[str, Any]) -> uag.Stats:
    return compare(target, left_padded(PROMPTS[:num_rows]) | options)


INPUTS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "dynamic": ("DynamicQuantizedLinear", dynamic),  # one scale for all tokens of a pass, as the next
    "one scale": ("ScaledLinear", partial(scaled, is_per_token=False)),
    # One id in a hundred differs, because last-bit differences change the rounding.
    "a scale per token": ("ScaledLinear", partial(scaled, is_per_token=True)),
}


@covering("name, num_rows, options", INPUTS, (1, 3), (GREEDY, SAMPLED))
def test_layers_that_quantize_their_input(name: str, num_rows: int, options: dict[str, Any]) -> None:
    layers, make = INPUTS[name]
    target = make(pair()[0])
    assert models.head_size(target) == models.head_size(pair()[0])
    stats = check(target, num_rows, options)
    assert stats.num_candidate_tokens == 0
    assert stats.fallbacks == [
        f"the target's layers ({layers}) quantize their input, which changes the logits of a block, "
        "so this call falls back to plain decoding"
    ]


@pytest.mark.parametrize("is_per_token", [False, True])
def test_a_scale_for_each_token_is_no_coarser_than_bfloat16(is_per_token: bool) -> None:
    found = {
        dtype: weights.quantized_input(scaled(pair()[0], is_per_token).to(dtype))
        for dtype in (torch.bfloat16, torch.float16, torch.float32)
    }
    fine = {torch.bfloat16} if is_per_token else set()
    assert {dtype for dtype, name in found.items() if not name} == fine


@needs_kernels
@ROWS_AND_MODES
def test_quantized_weights_alone_are_drafted_for(num_rows: int, options: dict[str, Any]) -> None:
    target = packed(pair()[0])
    assert_drafted(check(dynamic(pair()[0], torch.float16), num_rows, options))
    stats = check(target, num_rows, options)
    assert not stats.fallbacks
    assert_drafted(stats)
    assert "aten::mm" in stats.draft_dependence
    with pytest.raises(PairError, match="cannot draft for itself: it has weights that are not plain tensors"):
        uag.Assistant("copy", None, pair()[1]).generate(target, **left_padded(PROMPTS[:num_rows]), **options)


def test_a_model_that_is_quantized_later_is_tried_anew() -> None:
    model = copy.deepcopy(pair()[0])
    assert weights.quantized_input(model) == ""
    up = model.model.layers[1].mlp.up_proj
    model.model.layers[1].mlp.up_proj = dynamic(torch.nn.Sequential(up), torch.float16)[0]
    assert weights.quantized_input(model) == ""
    model.model.layers[0].mlp.up_proj = ScaledLinear(model.model.layers[0].mlp.up_proj, is_per_token=False).eval()
    assert weights.quantized_input(model) == "ScaledLinear"


def quantized_embeddings(model: Any) -> Any:
    spec = {torch.nn.Embedding: float_qparams_weight_only_qconfig}
    return quantize(dynamic(model), spec, torch.quint8)


QUANTIZED = (dynamic, quantized_embeddings, packed)


@covering("num_rows, options, shares, quantized", (1, 3), (GREEDY, SAMPLED), (False, True), QUANTIZED, strength=1)
def test_as_a_draft(num_rows: int, options: dict[str, Any], shares: bool, quantized: Callable[[Any], Any]) -> None:
    target, tokenizer, draft, draft_tokenizer = pair()
    inputs = left_padded(PROMPTS[:num_rows])
    if shares:
        like = copy.deepcopy(target)
        with torch.no_grad():
            weight, generator = like.lm_head.weight, torch.Generator().manual_seed(2)
            weight += 0.05 * torch.randn(weight.shape, generator=generator)
        assistant = uag.Assistant(quantized(like), num_candidate_tokens=4)
    else:
        assistant = uag.Assistant(quantized(draft), draft_tokenizer, tokenizer, num_candidate_tokens=4)
    assert_drafted(compare(target, inputs | options, assistant))
