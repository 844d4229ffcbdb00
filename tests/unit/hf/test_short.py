"""Short passes of a target: the model's own logits up to rounding, and every pass that must not be short."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import DynamicCache, StaticCache

import uag
from tests.support.models import tiny_target
from uag.hf import short
from uag.hf.short import ShortForward

PROMPT = [[7, 8, 9, 10, 11, 12], [0, 0, 13, 14, 15, 16]]


def fresh(name: str = "llama") -> Any:
    return copy.deepcopy(tiny_target(name)[0]).eval()


def prompt_read(model: Any, num_rows: int = 1) -> tuple[Any, torch.Tensor]:
    """A cache behind a prompt, the second row's padded on the left, and the mask over it."""
    ids = torch.tensor(PROMPT[:num_rows])
    mask = (ids != 0).long()
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    cache = DynamicCache()
    model(input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)
    return cache, mask


def block(width: int, num_rows: int, mask: torch.Tensor) -> dict[str, Any]:
    """What a pass over so many tokens behind the prompt is given, its cache left out."""
    ids = torch.arange(20, 20 + width)[None].repeat(num_rows, 1)
    mask = torch.cat([mask, mask.new_ones(num_rows, width)], dim=-1)
    return {"input_ids": ids, "attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1)[:, -width:]}


class Counted:
    """Counts the passes that the model's own forward runs."""

    def __init__(self, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num = 0
        own = kind.__call__

        def call(model: Any, *args: Any, **kwargs: Any) -> Any:
            self.num += 1
            return own(model, *args, **kwargs)

        monkeypatch.setattr(kind, "__call__", call)


@torch.inference_mode()
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "mistral"])
@pytest.mark.parametrize(("width", "num_rows"), [(1, 1), (4, 1), (1, 2), (3, 2)])
def test_logits_and_cache_are_the_models_own(
    name: str, width: int, num_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = fresh(name)
    model.config.sliding_window = None
    (own, mask), (theirs, _) = prompt_read(model, num_rows), prompt_read(model, num_rows)
    inputs = block(width, num_rows, mask)
    expected = model(**inputs, past_key_values=theirs, use_cache=True, return_dict=True)
    forward = ShortForward(model)
    counted = Counted(type(model), monkeypatch)
    got = forward(**inputs, past_key_values=own, use_cache=True, return_dict=True)
    assert counted.num == 0
    torch.testing.assert_close(got.logits, expected.logits, rtol=1e-5, atol=1e-5)
    for one, other in zip(got.past_key_values.layers, theirs.layers, strict=True):
        torch.testing.assert_close(one.keys, other.keys, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(one.values, other.values, rtol=1e-5, atol=1e-5)
    last = forward(**block(2, num_rows, inputs["attention_mask"]), past_key_values=own, logits_to_keep=1)
    assert last.logits.shape[:2] == (num_rows, 1)
    assert counted.num == 0


@torch.inference_mode()
def test_positions_follow_the_cache_where_none_are_given() -> None:
    model = fresh()
    (own, _), (theirs, _) = prompt_read(model), prompt_read(model)
    ids = torch.tensor([[30, 31]])
    expected = model(input_ids=ids, past_key_values=theirs, use_cache=True)
    got = ShortForward(model)(input_ids=ids, past_key_values=own, use_cache=True)
    torch.testing.assert_close(got.logits, expected.logits, rtol=1e-5, atol=1e-5)


def _hooked(model: Any) -> None:
    model.model.layers[0].register_forward_hook(lambda *_: None)


def _subclassed(model: Any) -> None:
    class Own(type(model)):  # type: ignore[misc]
        __module__ = "somebody"

    model.__class__ = Own


def _patched(model: Any) -> None:
    kind = type(model.model.layers[0].self_attn)
    own = kind.forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return own(self, *args, **kwargs)

    class Patched(kind):  # type: ignore[misc, valid-type]
        __module__ = kind.__module__

    Patched.forward = forward
    model.model.layers[0].self_attn.__class__ = Patched


def _with_attention_of_its_own(model: Any) -> None:
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register("of_its_own", sdpa_attention_forward)
    model.set_attn_implementation("of_its_own")


def _halved(model: Any) -> None:
    model.to(torch.bfloat16)


def _windowed(model: Any) -> None:
    model.config.sliding_window = 4


@torch.inference_mode()
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("llama", _hooked),
        ("llama", _subclassed),
        ("llama", _patched),
        ("llama", _with_attention_of_its_own),
        ("llama", _halved),
        ("mistral", _windowed),
    ],
)
def test_models_that_are_left_alone(name: str, change: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    model = fresh(name)
    change(model)
    cache, mask = prompt_read(model)
    forward = ShortForward(model)
    counted = Counted(type(model), monkeypatch)
    forward(**block(2, 1, mask), past_key_values=cache, use_cache=True)
    assert counted.num == 1


@pytest.mark.parametrize(
    "more",
    [
        {"output_hidden_states": True},
        {"output_attentions": True},
        {"attention_mask": torch.zeros(1, 1, 2, 8)},
        {"attention_mask": None, "input_ids": None, "inputs_embeds": torch.zeros(1, 2, 32)},
        {"input_ids": torch.ones((1, 40), dtype=torch.long), "attention_mask": None, "position_ids": None},
        {"labels": torch.tensor([[20, 21]])},
    ],
)
def test_passes_that_are_left_alone(more: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model = fresh()
    with torch.inference_mode():
        cache, mask = prompt_read(model)
        forward = ShortForward(model)
        counted = Counted(type(model), monkeypatch)
        forward(**block(2, 1, mask) | more, past_key_values=cache, use_cache=True)
    assert counted.num == 1


def test_caches_of_somebody_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(DynamicCache):
        pass

    model = fresh()
    cache, mask = prompt_read(model)
    cache.__class__ = Own
    forward = ShortForward(model)
    counted = Counted(type(model), monkeypatch)
    with torch.inference_mode():
        forward(**block(2, 1, mask), past_key_values=cache, use_cache=True)
    assert counted.num == 1


def test_gradients_casts_other_caches_and_hooks_on_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fresh()
    with torch.inference_mode():
        static = StaticCache(config=model.config, max_cache_len=16)
        model(input_ids=torch.tensor(PROMPT[:1]), past_key_values=static, use_cache=True)
    with torch.no_grad():
        cache, mask = prompt_read(model)
        forward = ShortForward(model)
    counted = Counted(type(model), monkeypatch)
    with torch.inference_mode():
        forward(input_ids=torch.tensor([[5, 6]]), past_key_values=static, use_cache=True)
    assert counted.num == 1
    forward(**block(2, 1, mask), past_key_values=cache, use_cache=True)  # with gradients
    assert counted.num == 2
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        forward(**block(2, 1, torch.ones((1, 8), dtype=torch.long)), past_key_values=cache, use_cache=True)
    assert counted.num == 3
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        with torch.no_grad():
            forward(**block(2, 1, torch.ones((1, 10), dtype=torch.long)), past_key_values=cache, use_cache=True)
    finally:
        handle.remove()
    assert counted.num == 4
    with torch.no_grad():
        forward(**block(2, 1, torch.ones((1, 12), dtype=torch.long)), past_key_values=cache, use_cache=True)
    assert counted.num == 4


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fresh()
    with torch.inference_mode():
        cache, mask = prompt_read(model)
        counted = Counted(type(model), monkeypatch)
        forward = ShortForward(model, is_on=False)
        assert not forward.is_short
        forward(**block(2, 1, mask), past_key_values=cache, use_cache=True)
    assert counted.num == 1


def test_large_layers_are_left_alone_without_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fresh()
    counted = Counted(type(model), monkeypatch)
    monkeypatch.setattr(short, "_LARGE_LAYER", 1)
    assert not ShortForward(model).is_short
    assert counted.num == 0


@pytest.mark.parametrize("fast_products", [True, False])
def test_the_assistants_option_switches_short_passes(fast_products: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = fresh()
    assert ShortForward(model).is_short  # the trial is over
    tokenizer = tiny_target("llama")[1]
    assistant = uag.Assistant.from_prompt_lookup(tokenizer)
    assistant.fast_products = fast_products
    counted = Counted(type(model), monkeypatch)
    ids = torch.tensor(PROMPT[:1])
    assistant.generate(model, ids, max_new_tokens=8, do_sample=False)
    num_passes = assistant.stats.num_target_forwards
    assert num_passes > 1
    assert counted.num == (1 if fast_products else num_passes)
