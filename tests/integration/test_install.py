"""The installed door: equal results, other calls untouched, and everything as it was after `uninstall`."""

from __future__ import annotations

import copy
import gc
import inspect
import weakref
from typing import Any

import pytest
import torch
from transformers import (
    GenerationConfig,
    GenerationMixin,
)

import uag
from tests.support.calls import (
    batch,
    pair,
)
from tests.support.models import tiny_draft, tiny_target

NEW = 30
GREEDY: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False}


@pytest.mark.parametrize("num_rows", [1, 3])
def test_the_installed_door(installed: None, num_rows: int) -> None:
    target, tokenizer, draft, draft_tokenizer = pair("gpt2")
    inputs = batch(tokenizer, num_rows)
    expected = target.generate(**inputs, **GREEDY).tolist()
    options = {"assistant_model": draft, "tokenizer": tokenizer, "assistant_tokenizer": draft_tokenizer}
    assert target.generate(**inputs, **GREEDY, **options).tolist() == expected
    assert uag.last_stats(target).strategy.startswith("cross-tokenizer")
    assert uag.last_stats(target).num_output_tokens == NEW * num_rows
    # by position as transformers' own signature has it: inputs, generation_config, logits_processor, ...
    del options["assistant_model"]
    by_position = (inputs["input_ids"], GenerationConfig(**GREEDY), None, None, None, None, draft)
    assert target.generate(*by_position, **options, attention_mask=inputs["attention_mask"]).tolist() == expected


def test_a_config_that_samples(installed: None) -> None:
    """Chat models often set it."""
    target, tokenizer, draft, draft_tokenizer = pair("gpt2")
    inputs = batch(tokenizer)
    config = GenerationConfig(do_sample=True, temperature=0.8, top_k=30, max_new_tokens=20)
    options = {"assistant_model": draft, "tokenizer": tokenizer, "assistant_tokenizer": draft_tokenizer}
    torch.manual_seed(11)
    expected = target.generate(**inputs, generation_config=config).tolist()
    state = torch.get_rng_state()
    torch.manual_seed(11)
    assert target.generate(**inputs, generation_config=config, **options).tolist() == expected
    assert torch.equal(torch.get_rng_state(), state)
    assert config.to_dict() == GenerationConfig(do_sample=True, temperature=0.8, top_k=30, max_new_tokens=20).to_dict()


def test_install_is_idempotent_and_uninstall_restores_exactly() -> None:
    original = GenerationMixin.generate
    uag.uninstall()
    assert GenerationMixin.generate is original
    uag.install()
    wrapped = GenerationMixin.generate
    uag.install()
    assert GenerationMixin.generate is wrapped is not original
    uag.uninstall()
    assert GenerationMixin.generate is original
    uag.uninstall()
    assert GenerationMixin.generate is original


def test_the_wrapper_looks_like_the_original(installed: None) -> None:
    wrapped = GenerationMixin.generate
    original = wrapped.__wrapped__
    assert inspect.signature(wrapped) == inspect.signature(original)
    assert (wrapped.__name__, wrapped.__qualname__, wrapped.__module__, wrapped.__doc__) == (
        original.__name__,
        original.__qualname__,
        original.__module__,
        original.__doc__,
    )
    assert "GenerationMixin" in str(wrapped)  # auto classes look for it
    target, _, _, _ = pair("gpt2")
    assert target.can_generate()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_beams": 2},
        {"generation_config": GenerationConfig(num_beams=3)},
        {"prompt_lookup_num_tokens": 3},
        {"penalty_alpha": 0.6, "top_k": 4},
        {"assistant_early_exit": 1},
        {"token_healing": True},
        {"is_assistant": True},
        {"use_mtp": True},
        {"speculation_type": "dflash"},
        {"assistant_ensemble_weight": 0.5},
        {"custom_generate": "somewhere/else"},
    ],
)
@pytest.mark.parametrize("with_draft", [False, True])
def test_other_calls_pass_through_untouched(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], with_draft: bool
) -> None:
    target, _, draft, _ = pair("gpt2")
    if with_draft and not options:
        pytest.skip("this one is ours")
    calls = []

    def generate(self: Any, *args: Any, **kwargs: Any) -> str:
        calls.append((self, args, kwargs))
        return "untouched"

    monkeypatch.setattr(GenerationMixin, "generate", generate)
    uag.install()
    try:
        given = {"inputs": torch.ones((1, 2), dtype=torch.long), **options}
        if with_draft:
            given["assistant_model"] = draft
        assert target.generate(**given) == "untouched"
    finally:
        uag.uninstall()
    (model, args, kwargs) = calls[0]
    assert model is target
    assert args == ()
    assert kwargs.keys() == given.keys()
    assert all(kwargs[name] is given[name] for name in given)


def test_a_class_with_a_generate_of_its_own_is_left_alone(installed: None) -> None:
    target, tokenizer, draft, _ = pair("gpt2")

    class Own(type(target)):  # type: ignore[misc]
        def generate(self, *args: Any, **kwargs: Any) -> Any:
            return kwargs

    other = copy.copy(target)
    other.__class__ = Own
    given = {"assistant_model": draft, "tokenizer": tokenizer}
    assert other.generate(**given) == given


def test_the_installed_door_keeps_no_model_alive(installed: None) -> None:
    target, tokenizer = tiny_target("gpt2")
    draft, draft_tokenizer = tiny_draft("gpt2")
    options = {"assistant_model": draft, "tokenizer": tokenizer, "assistant_tokenizer": draft_tokenizer}
    target.generate(**batch(tokenizer), max_new_tokens=4, do_sample=False, **options)
    kept = [weakref.ref(draft), weakref.ref(target)]
    del draft, options
    gc.collect()
    assert kept[0]() is None
    del target
    gc.collect()
    assert kept[1]() is None
