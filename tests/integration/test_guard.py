"""Targets that the tests have not tried: blocks are compared with single tokens once, and nobody notices."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import uag
from tests.integration.test_position_dependent import AT, CASES, COMMON, PROMPTS, VOCAB, compare
from tests.support.calls import OracleDrafter, left_padded, seeded
from tests.support.models import ARCHITECTURES, spread, tiny_model
from uag.errors import OptionError
from uag.hf import known, positions

guard = importlib.import_module("uag.decoding.guard")  # the package's face has a function of this name


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No class was tried by anybody, nor in this process."""
    guard.forget()
    monkeypatch.setattr(known, "CLASSES", frozenset())
    yield
    guard.forget()


def untold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what modules tell of lengths: a release whose names are new."""
    monkeypatch.setattr(positions, "cuts", lambda model: ())


class Peeking(LlamaForCausalLM):
    """Each pass of several tokens behind a cache is disturbed by its width: blocks are never right."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        found = super().forward(*args, **kwargs)
        cache = kwargs.get("past_key_values")
        ids = kwargs["input_ids"]
        if cache is not None and cache.get_seq_length() > ids.shape[1] and ids.shape[1] > 1:
            found.logits = found.logits + torch.randn(found.logits.shape, generator=torch.Generator().manual_seed(1))
        return found


class Backwards(LlamaForCausalLM):
    """The prompt's first token hears what comes last in its pass: only candidates behind the prompt are wrong."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        cache, ids = kwargs.get("past_key_values"), kwargs["input_ids"]
        if cache is None or cache.get_seq_length() == 0:
            kwargs |= {
                "input_ids": None,
                "inputs_embeds": self.model.embed_tokens(ids) * (1 + ids[:, -1:, None] / VOCAB),
            }
        return super().forward(*args, **kwargs)


class Slots(LlamaForCausalLM):
    """Positions are given and not looked at: padding counts."""

    def forward(
        self, input_ids: Any = None, attention_mask: Any = None, position_ids: Any = None, **kwargs: Any
    ) -> Any:
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, **kwargs)


class Broken(LlamaForCausalLM):
    """Takes no tokens of others: only the prompt of the call."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if int(kwargs["input_ids"][0, 0]) != PROMPTS[0][0] and not kwargs["past_key_values"].get_seq_length():
            raise ValueError("where is the picture?")
        return super().forward(*args, **kwargs)


def made(kind: type, **options: Any) -> Any:
    torch.manual_seed(0)
    return spread(kind(LlamaConfig(vocab_size=VOCAB, bos_token_id=None, eos_token_id=None, **COMMON | options)))


@pytest.mark.parametrize("seed", [None, 4], ids=["greedy", "sampled"])
@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("name", [name for name in CASES if CASES[name][2]])
def test_lengths_that_no_module_tells_of_are_found(
    name: str, num_rows: int, seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dynamic and long rotary factors, dropped caches, temperatures by slot: all of them would be found."""
    model = tiny_model(CASES[name][0], VOCAB, **COMMON | CASES[name][1])
    kind = CASES[name][2]
    untold(monkeypatch)
    stats = compare(model, left_padded(list(PROMPTS[:num_rows])), 5, seed)
    assert stats.num_accepted_tokens > 0
    reasons = "; ".join(stats.fallbacks)
    assert ("the rest of this call was decoded plainly" in reasons) == (kind != "count")
    assert ("rows go in step: the target" in reasons) == (num_rows == 3)


@pytest.mark.parametrize("name", ["longrope", "phi3", "llama4-temperature"])
def test_without_the_guard_they_differ(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the test above could fail."""
    model = tiny_model(CASES[name][0], VOCAB, **COMMON | CASES[name][1])
    untold(monkeypatch)
    num_different = 0
    for spoil in (3, 4, 5):
        try:
            compare(model, left_padded(list(PROMPTS)), spoil, check_blocks=False)
        except AssertionError:
            num_different += 1
    assert num_different


def test_blocks_that_are_never_right() -> None:
    stats = compare(made(Peeking), left_padded(list(PROMPTS[:1])), 5)
    assert stats.num_candidate_tokens == 0
    assert len(stats.fallbacks) == 1
    assert stats.fallbacks[0].startswith("the target gives a block other logits than single tokens (")
    assert stats.fallbacks[0].endswith("of their spread apart), so this call was decoded plainly")


@pytest.mark.parametrize("num_rows", [1, 3])
def test_only_a_prompt_that_hears_its_candidates_goes_alone(num_rows: int) -> None:
    stats = compare(made(Backwards), left_padded(list(PROMPTS[:num_rows])), 5)
    assert stats.num_accepted_tokens > 0
    reason = "rows go in step: the target reads a prompt otherwise with tokens behind it"
    assert stats.fallbacks == [reason] * (num_rows > 1)


def test_padding_that_counts_makes_rows_go_in_step() -> None:
    model = made(Slots)
    assert not compare(model, left_padded(list(PROMPTS[:1])), 5).fallbacks
    assert "rows go in step: the target counts padding" in compare(model, left_padded(list(PROMPTS)), 5).fallbacks


def test_a_target_that_cannot_be_tried_is_decoded_plainly() -> None:
    stats = compare(made(Broken), left_padded(list(PROMPTS[:1])), 5)
    assert stats.fallbacks == [
        "the target could not be tried (ValueError: where is the picture?), so this call was decoded plainly"
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "name", ["llama", "gpt2", "gemma3", "mistral", "mixtral", "qwen3", "falcon", "phi3", "t5", "bart", "bloom", "glm"]
)
def test_rounding_is_no_difference(name: str, dtype: torch.dtype) -> None:
    model_type, options, _, _ = ARCHITECTURES[name]
    draft = tiny_model("llama", VOCAB, seed=3, **COMMON)
    for seed in range(3):
        model = tiny_model(model_type, VOCAB, **options | {"seed": seed}).to(dtype)
        assistant = uag.Assistant(draft, num_candidate_tokens=3)
        given = left_padded(list(PROMPTS))
        assistant.generate(model, **given, max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0)
        assert assistant.stats.num_candidate_tokens > 0
        reasons = "; ".join(assistant.stats.fallbacks)
        assert "logits" not in reasons
        assert "tried" not in reasons
        assert "counts padding" not in reasons


def test_a_class_is_tried_once_and_again_in_another_configuration() -> None:
    draft = tiny_model("llama", VOCAB, seed=3, **COMMON)
    given: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}

    def num_passes(model: Any, **options: Any) -> int:
        """Passes of the head, which no hook counts where the guard runs them."""
        calls: list[int] = []
        original = model.lm_head.forward

        def counted(*args: Any) -> Any:
            calls.append(1)
            return original(*args)

        model.lm_head.forward = counted
        assistant = uag.Assistant(draft, num_candidate_tokens=2, **options)
        assistant.generate(model, torch.tensor([PROMPTS[0]]), **given)
        del model.lm_head.forward
        return len(calls) - assistant.stats.num_target_forwards

    first, same = made(Slots), made(Slots)
    assert num_passes(first, check_blocks=False) == 0
    assert num_passes(first) > 0
    assert num_passes(first) == num_passes(same) == 0
    assert num_passes(made(Slots, rope_parameters={"rope_type": "default", "rope_theta": 500.0})) > 0
    assert num_passes(made(Slots).double()) > 0


def test_known_classes_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert known.is_known(made(LlamaForCausalLM))
    assert not known.is_known(made(Slots))
    strange = made(LlamaForCausalLM)
    strange.config.rope_parameters = {"rope_type": "spiral", "rope_theta": 1.0}
    assert not known.is_known(strange)
    gpt2 = tiny_model("gpt2", VOCAB, n_embd=32, n_layer=2, n_head=4)
    assert type(gpt2) is GPT2LMHeadModel
    assert known.is_known(gpt2)


def test_nobody_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hooks, the random state, the model's buffers and attributes, the caller's cache, the statistics."""
    untold(monkeypatch)
    model = tiny_model("llama", VOCAB, **COMMON | CASES["longrope"][1])
    inputs = {"input_ids": torch.tensor([PROMPTS[0]]), "max_new_tokens": 3, "pad_token_id": 0, "do_sample": True}
    expected = seeded(3, model.generate, **inputs)
    drafter = OracleDrafter(expected[:, -3:].tolist(), VOCAB)
    assistant = uag.Assistant(None, drafter=drafter, num_candidate_tokens=2)
    before = {name: value.clone() for name, value in model.named_buffers()}
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    seen: list[int] = []
    layer = model.model.layers[0]
    handles = [
        model.register_forward_pre_hook(lambda *_: seen.append(0)),
        layer.register_forward_hook(lambda *_: seen.append(1)),
    ]
    found = seeded(3, assistant.generate, model, **inputs)
    assert seen == [0, 1] * assistant.stats.num_target_forwards
    for handle in handles:
        handle.remove()
    assert found.tolist() == expected.tolist()
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())
    assert {name: set(vars(module)) for name, module in model.named_modules()} == attributes
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_copy_and_install_keep_the_option() -> None:
    assistant = uag.Assistant(None, check_blocks=False)
    assert not copy.deepcopy(assistant).check_blocks
    with pytest.raises(OptionError, match="check_blocks='no' must be True or False"):
        uag.Assistant(None, check_blocks="no")  # type: ignore[arg-type]
    model, draft = made(Peeking), tiny_model("llama", VOCAB, seed=3, **COMMON)
    given: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0, "assistant_model": draft}
    try:
        for check_blocks in (False, True):
            uag.install(check_blocks=check_blocks)
            model.generate(torch.tensor([PROMPTS[0]]), **given)
            assert any("other logits" in why for why in uag.last_stats(model).fallbacks) == check_blocks
    finally:
        uag.uninstall()


def test_lengths_are_those_that_a_configuration_names() -> None:
    assert known.lengths(tiny_model("llama", VOCAB, **COMMON | CASES["longrope"][1])) == (AT, 256)
