"""Targets in training mode: drafted for where nothing in them differs then, else decoded plainly with the reason."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoConfig

import uag
from tests.support.calls import GREEDY, PROMPTS, SAMPLED, left_padded, oracle, pair, seeded
from tests.support.models import ARCHITECTURES, tiny_model
from uag.hf.training import training_effect

MODES = pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
ROWS = pytest.mark.parametrize("num_rows", [1, 3])
TELLING = ("drop", "jitter", "noise")


def trained(name: str, rate: float | None = None) -> Any:
    """A tiny model in training mode; with `rate`, all numbers that are random in training are that."""
    model_type, known, *_ = ARCHITECTURES[name]
    if rate is not None:
        plain = AutoConfig.for_model(model_type, **{k: v for k, v in known.items() if k != "seed"}).to_dict()
        numbers = [k for k, v in plain.items() if isinstance(v, float) and any(part in k for part in TELLING)]
        known = known | dict.fromkeys(numbers, rate)
    return tiny_model(model_type, 300, **{"seed": 1} | known).train()


def check(target: Any, num_rows: int, options: dict[str, Any]) -> uag.Stats:
    """Compare with plain decoding in the same mode: ids and the generator's final state."""
    inputs = left_padded(PROMPTS[:num_rows])
    expected = seeded(3, target.generate, **inputs, **options)
    state = torch.get_rng_state()
    width = 1 if target.config.is_encoder_decoder else inputs["input_ids"].shape[1]
    assistant = oracle(target, None, expected, width)
    output = seeded(3, assistant.generate, target, **inputs, **options)
    assert output.tolist() == expected.tolist()
    assert torch.equal(torch.get_rng_state(), state)
    assert target.training
    stats: uag.Stats = assistant.stats
    return stats


DRAFTED = ["llama", "qwen2", "qwen3", "mistral", "gemma3", "mixtral", "gpt_oss", "gpt2", "falcon", "bloom", "t5"]


@MODES
@ROWS
@pytest.mark.parametrize("name", DRAFTED)
def test_without_dropout_it_is_drafted_for(name: str, num_rows: int, options: dict[str, Any]) -> None:
    stats = check(trained(name, 0.0), num_rows, options)
    assert not any("training" in reason for reason in stats.fallbacks)
    assert 0 < stats.num_accepted_tokens < stats.num_candidate_tokens


@MODES
@ROWS
@pytest.mark.parametrize("name", ["llama", "qwen2", "gpt2", "mixtral", "t5", "bart"])
def test_with_dropout_it_is_decoded_plainly(name: str, num_rows: int, options: dict[str, Any]) -> None:
    stats = check(trained(name, 0.1), num_rows, options)
    assert "training mode" in stats.fallbacks[0]
    assert stats.num_candidate_tokens == 0


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_is_taken_for_the_same_is_the_same(name: str) -> None:
    """Plain decoding's ids and draws are those of evaluation wherever no effect is found, and only there."""
    for rate in (None, 0.0):
        if rate is not None and name == "mpt":
            continue  # takes no 0.0 for its rates, which are 0 by default
        model = trained(name, rate)
        effect = training_effect(model)
        ids = torch.tensor([PROMPTS[0]])
        found = seeded(3, model.generate, ids, **SAMPLED).tolist(), torch.get_rng_state().tolist()
        model.eval()
        expected = seeded(3, model.generate, ids, **SAMPLED).tolist(), torch.get_rng_state().tolist()
        assert (found == expected) or effect, "an effect was overlooked"
        assert not (found == expected and effect), effect
        assert not training_effect(model)


class Jitter(torch.nn.Module):
    """Noise by a name of its own, as routers of experts have it."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and self.eps > 0:
            x = x * torch.empty_like(x).uniform_(1 - self.eps, 1 + self.eps)
        return x


class Functional(torch.nn.Module):
    """Dropout by a function that takes its rate from somewhere."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, p=self.rate, training=self.training)


class Hidden(torch.nn.Module):
    """Looks at its mode in a way that only running it would tell."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 1.5 if getattr(self, "training") else x  # noqa: B009


class LayerDrop(torch.nn.Module):
    """Draws a number in training even where no layer is ever dropped."""

    layerdrop = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and torch.rand([]) < self.layerdrop:
            return torch.zeros_like(x)
        return x


def noisy_call(module: Any) -> Any:
    """A module whose `forward` somebody has replaced."""
    forward = module.forward

    def replaced(x: torch.Tensor) -> Any:
        return forward(x) + (torch.randn(()) if module.training else 0.0)

    module.forward = replaced
    return module


Add = Callable[[], Any]
CASES: dict[str, tuple[Add, bool]] = {
    "dropout": (lambda: torch.nn.Dropout(0.1), True),
    "dropout of nothing": (lambda: torch.nn.Dropout(0.0), False),
    "alpha dropout": (lambda: torch.nn.AlphaDropout(0.1), True),
    "random slopes": (lambda: torch.nn.RReLU(), True),
    "fixed slopes": (lambda: torch.nn.LeakyReLU(), False),
    "batch norm": (lambda: torch.nn.SyncBatchNorm(4), True),
    "layer norm": (lambda: torch.nn.LayerNorm(4), False),
    "recurrent": (lambda: torch.nn.GRU(4, 4), True),
    "jitter": (lambda: Jitter(0.01), True),
    "no jitter": (lambda: Jitter(0.0), False),
    "functional": (lambda: Functional(0.1), True),
    "functional of nothing": (lambda: Functional(0.0), False),
    "hidden": (Hidden, True),
    "layer drop that draws": (LayerDrop, True),
    "replaced": (lambda: noisy_call(torch.nn.Identity()), True),
    "untouched": (torch.nn.Identity, False),
}


@pytest.mark.parametrize("case", CASES)
def test_modules(case: str) -> None:
    make, has_effect = CASES[case]
    module = make()
    assert bool(training_effect(torch.nn.Sequential(torch.nn.Linear(4, 4), module))) is has_effect
    assert not training_effect(torch.nn.Sequential(torch.nn.Linear(4, 4), module).eval())


def test_a_hook_that_looks_at_the_mode() -> None:
    """NEFTune adds noise to embeddings so."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))

    def hook(module: Any, _: Any, output: Any) -> Any:
        return output + torch.randn(4) if module.training else output

    model[0].register_forward_hook(hook)
    assert training_effect(model)


@ROWS
def test_gradient_checkpointing_keeps_no_cache(num_rows: int) -> None:
    target = trained("llama")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        target.gradient_checkpointing_enable()
        stats = check(target, num_rows, GREEDY)
        assert "training mode" in stats.fallbacks[0]
        target.gradient_checkpointing_disable()
        assert not check(target, num_rows, GREEDY).fallbacks


@MODES
@ROWS
def test_only_a_new_layer_is_in_training_mode(num_rows: int, options: dict[str, Any]) -> None:
    """A layer that somebody has put in has the flag set, whatever the model's says."""
    target = copy.deepcopy(pair()[0])
    target.model.layers[0].mlp.act_fn = torch.nn.SiLU()
    inputs = left_padded(PROMPTS[:num_rows])
    expected = seeded(3, target.generate, **inputs, **options)
    assistant = oracle(target, None, expected, inputs["input_ids"].shape[1])
    assert seeded(3, assistant.generate, target, **inputs, **options).tolist() == expected.tolist()
    assert not assistant.stats.fallbacks
    assert assistant.stats.num_candidate_tokens > 0
