"""The draft model is not changed, and may have a different dtype, context or head."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import uag
from tests.support.callers import failing_after
from tests.support.calls import (
    GREEDY,
    MODES,
    PROMPTS,
    SAMPLED,
    TEXTS,
    assistant_of,
    batch,
    compare,
    draft_options,
    left_padded,
    pair,
)
from tests.support.forked import elsewhere
from tests.support.grids import covering
from tests.support.models import tiny_draft, tiny_model
from tests.support.tiny_classes import tiny_config
from tests.support.tokenizers import small_tokenizer
from uag.adapters import TokenizerAdapter
from uag.kernels import kernel

TEXT = "The quick brown fox jumps over the lazy dog, and the dog sleeps on."


@MODES
def test_the_draft_is_not_changed(installed: None, options: dict[str, Any]) -> None:
    target, tokenizer, draft, _ = pair("gpt2")
    draft.generation_config.repetition_penalty = 1.3
    weights = {name: value.clone() for name, value in draft.state_dict().items()}

    def state() -> tuple[Any, ...]:
        modules = {name: type(module) for name, module in draft.named_modules()}
        configs = copy.deepcopy((draft.config.to_dict(), draft.generation_config.to_dict()))
        return configs, set(vars(draft)), modules, draft.training

    before = state()
    target.generate(**batch(tokenizer, 3), **options, **draft_options("gpt2"))
    assert state() == before
    assert weights.keys() == draft.state_dict().keys()
    assert all(torch.equal(value, draft.state_dict()[name]) for name, value in weights.items())
    draft.generation_config.repetition_penalty = None


@covering("name, num_rows, options", ("gpt2", "llama"), (1, 3), (GREEDY, SAMPLED), strength=1)
def test_a_draft_in_training_mode_drafts_as_in_evaluation(name: str, num_rows: int, options: dict[str, Any]) -> None:
    target, _, draft, _ = pair(name)
    given = left_padded(PROMPTS[:num_rows]) | options
    in_evaluation = compare(target, given, assistant_of(name))
    draft.train()
    try:
        stats = compare(target, given, assistant_of(name))
        assert all(module.training for module in draft.modules())
    finally:
        draft.eval()
    assert stats.num_candidate_tokens == in_evaluation.num_candidate_tokens > 0
    assert stats.num_accepted_tokens == in_evaluation.num_accepted_tokens


@covering("is_shared, num_rows", (False, True), (1, 3), strength=1)
def test_a_prompt_longer_than_the_drafts_context(is_shared: bool, num_rows: int) -> None:
    target, tokenizer, _, _ = pair("gpt2")
    draft_tokenizer = tokenizer if is_shared else small_tokenizer("llama")
    draft = tiny_model("gpt2", len(draft_tokenizer), n_embd=32, n_layer=1, n_head=2, n_positions=48)
    inputs = left_padded([tokenizer(text * 16, add_special_tokens=False)["input_ids"] for text in TEXTS[:num_rows]])
    assert inputs["input_ids"].shape[1] > 100
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=3)
    stats = compare(target, inputs | {"max_new_tokens": 60, "do_sample": False}, assistant)
    assert stats.num_candidate_tokens > 40 * num_rows  # it drafts to the very end: the window moves on
    assert stats.draft_passes == "in one call, int8" or not kernel.LEVEL


@pytest.mark.parametrize("head", [380, 600, 650])
def test_a_head_smaller_or_larger_than_the_drafts_tokenizer(head: int) -> None:
    """Ids without an embedding are never looked up, and head entries without a token are never proposed."""
    target_tokenizer, draft_tokenizer = small_tokenizer("llama"), small_tokenizer("byte_level")
    assert len(draft_tokenizer) == 600
    target = tiny_model("gpt2", len(target_tokenizer), n_embd=32, n_layer=1, n_head=2)
    draft = tiny_model("gpt2", head, seed=3, n_embd=32, n_layer=1, n_head=2)
    inputs = torch.tensor([target_tokenizer(TEXT + " 日本語", add_special_tokens=False)["input_ids"]])
    assistant = uag.Assistant(draft, draft_tokenizer, target_tokenizer, num_candidate_tokens=3)
    given = {"input_ids": inputs, "max_new_tokens": 16, "do_sample": False}
    assert compare(target, given, assistant).num_candidate_tokens > 0


def test_each_tokenizer_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading one can take seconds, so the assistant and its drafter share the result."""
    read: list[Any] = []
    plain = TokenizerAdapter.__init__

    def reads(self: TokenizerAdapter, given: Any) -> None:
        read.append(given)
        plain(self, given)

    monkeypatch.setattr(TokenizerAdapter, "__init__", reads)
    (draft, draft_tokenizer), tokenizer = tiny_draft("llama"), copy.deepcopy(small_tokenizer("byte_level"))
    draft_tokenizer = copy.deepcopy(draft_tokenizer)
    uag.Assistant(draft, draft_tokenizer, tokenizer)
    assert len(read) == 2


@pytest.mark.parametrize("num_passes", [0, 5])
@pytest.mark.parametrize("error", [torch.OutOfMemoryError, KeyError])
def test_calls_outlast_failed_drafts(error: type[Exception], num_passes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    target, tokenizer, draft, _ = pair("gpt2")
    assistant = assistant_of("gpt2")
    given = batch(tokenizer, 3) | GREEDY
    with monkeypatch.context() as patch:
        patch.setattr(draft, "forward", failing_after(num_passes, draft.forward, error("no room left")))
        with pytest.warns(UserWarning, match="stopped drafting: .*no room left"):
            (reason,) = compare(target, given, assistant).fallbacks
    assert reason.startswith(f"the draft {type(draft).__name__!r} stopped drafting: ")
    stats = compare(target, given, assistant)
    assert stats.num_accepted_tokens > 0
    assert not stats.fallbacks


class ScalesByLength(LlamaForCausalLM):
    """Keeps a tensor for the lengths that it has seen, as models of remote code do with their rotary tables."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        if getattr(self, "width", 0) != output.logits.shape[1]:
            self.width = output.logits.shape[1]
            self.scales = torch.full((self.width, 1), 2.0)
        output.logits = output.logits * self.scales
        return output


def test_a_draft_that_keeps_tensors_of_its_passes_can_be_trained_afterwards() -> None:
    target, tokenizer, _, _ = pair()
    draft = ScalesByLength(tiny_config(LlamaConfig, vocab_size=target.config.vocab_size))
    assistant = uag.Assistant(draft, tokenizer, tokenizer, num_candidate_tokens=3)
    assert compare(target, batch(tokenizer, 1) | GREEDY, assistant).num_draft_forwards > 0
    ids = torch.arange(5, 5 + draft.width)[None]
    draft(input_ids=ids, labels=ids).logits.sum().backward()
    assert draft.lm_head.weight.grad is not None


def test_a_draft_in_training_mode_serves_two_threads() -> None:
    """One thread's pass ends while the other one's has begun: its dropout draws nothing."""
    target, tokenizer, draft, draft_tokenizer = pair("gpt2")
    draft = copy.deepcopy(draft).train()
    own, given, found = draft.transformer.wpe.forward, left_padded(PROMPTS[:1]) | GREEDY, []

    def call() -> uag.Stats:
        assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=4, draft_weights="model")
        assistant.generate(target, **given)
        return assistant.stats

    def held(wait: Callable[[], None]) -> None:
        def forward(*args: Any) -> Any:
            draft.transformer.wpe.forward = own
            wait()
            return own(*args)

        draft.transformer.wpe.forward = forward
        found.append(call())

    call()  # with the draft's trials
    state = torch.get_rng_state()
    with elsewhere(held):
        found.append(call())
    assert torch.equal(torch.get_rng_state(), state)
    assert found[0].num_accepted_tokens == found[1].num_accepted_tokens > 0
    assert all(module.training for module in draft.modules())
