"""Targets in training mode are assisted if training changes nothing; otherwise they fall back to plain decoding."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoConfig

import uag
from tests.support.calls import GREEDY, MODES, PROMPTS, ROWS, SAMPLED, assert_drafted, compare, left_padded, pair
from tests.support.grids import covering
from tests.support.models import ARCHITECTURES, tiny_model
from uag.hf import required_names

TELLING = ("drop", "jitter", "noise")


def trained(name: str, rate: float | None = None) -> Any:
    model_type, known, *_ = ARCHITECTURES[name]
    if rate is not None:
        plain = AutoConfig.for_model(model_type, **{k: v for k, v in known.items() if k != "seed"}).to_dict()
        numbers = [k for k, v in plain.items() if isinstance(v, float) and any(part in k for part in TELLING)]
        known = known | dict.fromkeys(numbers, rate)
    return tiny_model(model_type, 300, **{"seed": 1} | known).train()


def check(target: Any, num_rows: int, options: dict[str, Any], is_training: bool = True) -> uag.Stats:
    plain = copy.deepcopy(target)  # a pass may update buffers
    stats = compare(target, left_padded(PROMPTS[:num_rows]) | options, plain=plain)
    assert target.training is is_training
    return stats


DROPPING = ["llama", "qwen2", "gpt2", "mixtral", "t5", "bart"]
DRAFTED = ["llama", "qwen2", "qwen3", "mistral", "gemma3", "mixtral", "gpt_oss", "gpt2", "falcon", "bloom", "t5"]


@covering("name, num_rows, options", DRAFTED, (1, 3), (GREEDY, SAMPLED), strength=1)
def test_without_dropout_it_is_assisted(name: str, num_rows: int, options: dict[str, Any]) -> None:
    stats = check(trained(name, 0.0), num_rows, options)
    assert not any("training" in reason for reason in stats.fallbacks)
    assert_drafted(stats)


@covering("name, num_rows, options", DROPPING, (1, 3), (GREEDY, SAMPLED), strength=1)
def test_with_dropout_it_falls_back_to_plain_decoding(name: str, num_rows: int, options: dict[str, Any]) -> None:
    stats = check(trained(name, 0.1), num_rows, options)
    assert "training mode" in stats.fallbacks[0]
    assert stats.num_candidate_tokens == 0


class Running(torch.nn.Module):
    """Updates a buffer at every pass, and draws nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.mean: torch.Tensor = torch.nn.Buffer(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean = 0.5 * self.mean + x.mean()
        return x - 3 * self.mean


Add = Callable[[], Any]
CASES: dict[str, tuple[Add, str]] = {
    "dropout": (lambda: torch.nn.Dropout(0.1), "draws random numbers"),
    "dropout of nothing": (lambda: torch.nn.Dropout(0.0), ""),
    "running mean": (Running, "different logits for a block than for single tokens"),
}


@covering("case, num_rows, options", CASES, (1, 3), (GREEDY, SAMPLED), strength=1)
def test_a_layer_that_is_different_in_training_mode(case: str, num_rows: int, options: dict[str, Any]) -> None:
    make, why = CASES[case]
    target = copy.deepcopy(pair()[0]).eval()
    target.model.norm = torch.nn.Sequential(target.model.norm, make().train())
    stats = check(target, num_rows, options, is_training=False)
    assert bool(why) == any("in training mode (call model.eval() first)" in reason for reason in stats.fallbacks)
    assert why in "; ".join(stats.fallbacks)
    assert (stats.num_accepted_tokens > 0) == (not why)


def test_a_rate_that_is_changed_later_is_seen() -> None:
    target = copy.deepcopy(pair()[0]).eval()
    target.model.norm = torch.nn.Sequential(target.model.norm, torch.nn.Dropout(0.0).train())
    for rate, is_plain in ((0.0, False), (0.3, True), (0.0, False)):
        target.model.norm[1].p = rate
        assert bool(check(target, 1, GREEDY, is_training=False).num_candidate_tokens) is not is_plain


@ROWS
def test_gradient_checkpointing_keeps_a_cache_since_5_24(num_rows: int) -> None:
    target = trained("llama")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        target.gradient_checkpointing_enable()
        stats = check(target, num_rows, GREEDY)
        keeps = required_names.release() >= (5, 24)
        assert bool(stats.num_accepted_tokens) is keeps
        assert keeps or "training mode" in stats.fallbacks[0]
        target.gradient_checkpointing_disable()
        assert not check(target, num_rows, GREEDY).fallbacks


@MODES
def test_an_adapter_with_dropout_falls_back_to_plain_decoding_until_it_is_evaluated(options: dict[str, Any]) -> None:
    """The trial of its layers must not draw from the caller's generator, nor be cached for evaluation mode."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.3)
    target = peft.inject_adapter_in_model(config, copy.deepcopy(pair()[0]))
    stats = check(target.train(), 1, options)
    assert stats.fallbacks[0].startswith("the target draws random numbers in its passes in training mode")
    stats = check(target.eval(), 1, options, is_training=False)
    assert not stats.fallbacks
    assert stats.num_accepted_tokens > 0
