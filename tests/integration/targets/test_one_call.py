"""Targets' passes in one call of the kernels: what they compute, when they run, and that nothing else changes."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import uag
from tests.integration.drafts.test_decoder_families import _IDS, _KV, FAMILIES, NUM_IDS, VOCAB_SIZE, tiny
from tests.support.calls import GREEDY, PROMPTS, left_padded
from tests.support.models import tiny_target
from uag.hf import models
from uag.hf.cache import caches
from uag.kernels import Decoder, OwnKernels, decoder_of, kernel, one_call, operations

pytestmark = pytest.mark.skipif(not kernel.LEVEL, reason="the kernels were not compiled here")

MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "SmolLM3, without rotary layers": ("smollm3", {**_KV, "no_rope_layers": [1, 0, 1]}),
    "Qwen2, with windows": ("qwen2", {**_KV, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    "Phi-3, with windows": ("phi3", {**_KV, "sliding_window": 8}),
    "StarCoder2, with windows": ("starcoder2", {**_KV, "sliding_window": 8}),
    "OLMo 3": ("olmo3", {**_KV, "sliding_window": 8}),
    "Ministral": ("ministral", {**_KV, "head_dim": 16, "sliding_window": 8}),
    "Seed-OSS": ("seed_oss", {**_KV, "head_dim": 16}),
    "VaultGemma": ("vaultgemma", {**_KV, "head_dim": 16, "sliding_window": 8}),
    "CWM": ("cwm", {**_KV, "head_dim": 16, "sliding_window": 8}),
    "GPT-2, scaled by layer": (
        "gpt2",
        {**_IDS, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128, "scale_attn_by_inverse_layer_idx": True},
    ),
}
WHOLE = [name for name in FAMILIES if "NeoX" not in name] + list(MORE)


def made(name: str, dtype: torch.dtype = torch.float32) -> Any:
    """Build a target whose windows are shorter than the texts of these tests."""
    if name in FAMILIES:
        return tiny(name, dtype)
    model_type, options = MORE[name]
    if model_type not in CONFIG_MAPPING:
        pytest.skip("not in this release")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[model_type](**options), dtype=dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0) if parameter.dim() > 1 else parameter.add_(0.2 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", WHOLE)
@torch.no_grad()
def test_pass_has_the_models_logits_and_keys(name: str, dtype: torch.dtype) -> None:
    """Beyond windows, in rows of different lengths, with blocks of several widths."""
    model = made(name, dtype)
    decoder = decoder_of(model, "model")
    assert isinstance(decoder, Decoder), decoder
    ids = torch.stack([torch.arange(NUM_IDS) * step % (VOCAB_SIZE - 3) + 3 for step in (7, 11)])
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    both = [caches.default_cache(model), caches.default_cache(model)]
    prompt = {"input_ids": ids[:, :12], "attention_mask": mask[:, :12], "position_ids": positions[:, :12]}
    for cache in both:
        model(**prompt, **{caches.CACHE: cache})
        caches.record_past(cache)
    ends = (13, 16, 25, NUM_IDS)
    rtol, atol = (0.0, 2e-4) if dtype is torch.float32 else (0.05, 0.6)
    for start, end in zip((12, *ends), ends, strict=False):
        inputs = {"attention_mask": mask[:, :end], "position_ids": positions[:, start:end], "use_cache": True}
        inputs |= {"input_ids": ids[:, start:end], "logits_to_keep": end - start, "return_dict": True}
        expected = model(**inputs, **{caches.CACHE: both[0]}).logits.float()
        with OwnKernels(model).running():
            found = one_call.run(decoder, inputs | {caches.CACHE: both[1]}, end - start)
        assert found is not None
        scale = expected.std()
        torch.testing.assert_close(found.logits / scale, expected / scale, rtol=rtol, atol=atol)
        for cache in both:
            caches.crop(cache, 0)
    for one, other in zip(*(caches.self_attention_layers(cache) for cache in both), strict=True):
        assert one.keys.dtype is other.keys.dtype is dtype
        for found, expected in ((one.keys, other.keys), (one.values, other.values)):
            torch.testing.assert_close(found[..., -3:, :].float(), expected[..., -3:, :].float(), rtol=0.1, atol=0.2)
    assert both[0].get_seq_length() == both[1].get_seq_length()


def passes_of(call: Any) -> tuple[int, int]:
    counts = [0, 0]
    run = one_call.run

    def counting(*args: Any) -> Any:
        found = run(*args)
        counts[found is None] += 1
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(one_call, "run", counting)
        call()
    return counts[0], counts[1]


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_calls_run_so(name: str, num_rows: int) -> None:
    target, tokenizer = tiny_target(name)
    given = left_padded(PROMPTS[:num_rows]) | GREEDY
    assistant = uag.Assistant(None, None, tokenizer)
    expected = target.generate(**given)
    outputs = []
    assert passes_of(lambda: outputs.append(assistant.generate(target, **given)))[1] == 0
    assert outputs[0].equal(expected)
    assert passes_of(lambda: assistant.generate(target, **given))[0] >= assistant.stats.num_target_forwards - 1
    assert assistant.stats.is_draft_independent


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"cache_implementation": "static"}, "llama"),  # a static cache
        ({"max_new_tokens": 2000}, "llama"),  # beyond the positions
        ({}, "gpt_neox"),  # weights that would have to be copied
        ({}, "bloom"),  # no description
    ],
)
def test_calls_that_run_layer_by_layer(options: dict[str, Any], name: str) -> None:
    target, tokenizer = tiny_target(name)
    given: dict[str, Any] = left_padded(PROMPTS[:1]) | GREEDY | options
    given["stop_strings"], given["tokenizer"] = ["e"], tokenizer
    outputs = []
    assistant = uag.Assistant(None, None, tokenizer)
    assistant.generate(target, **given)
    assert passes_of(lambda: outputs.append(assistant.generate(target, **given))) == (0, 0)
    assert outputs[0].equal(target.generate(**given))


def test_changed_weights_count_in_the_next_call() -> None:
    target, tokenizer = tiny_target("llama")
    given = left_padded(PROMPTS[:1]) | GREEDY
    assistant = uag.Assistant(None, None, tokenizer)
    before = assistant.generate(target, **given)
    for name, parameter in target.named_parameters():
        with torch.no_grad():
            parameter.data.copy_(parameter + 0.3 * torch.randn_like(parameter))  # as other code does, without a version
        after = assistant.generate(target, **given)
        assert after.equal(target.generate(**given)), name
    assert not after.equal(before)


AFTERWARDS: dict[str, Callable[[Any], Any]] = {
    "embedding": lambda target: target.get_input_embeddings().embed_scale.fill_(0.5),
    "scores": lambda target: [vars(layer.self_attn).update(scaling=0.01) for layer in target.model.layers],
    "eps": lambda target: setattr(target.model.norm, "eps", 5.0),
    "soft cap": lambda target: setattr(target.config, "final_logit_softcapping", 0.02),
}


@pytest.mark.parametrize("change", AFTERWARDS.values(), ids=AFTERWARDS)
def test_what_changes_after_the_first_call_is_described_again(change: Callable[[Any], Any]) -> None:
    target, tokenizer = tiny_target("gemma2")
    target = copy.deepcopy(target)
    given = left_padded(PROMPTS[:1]) | GREEDY | {"return_dict_in_generate": True, "output_logits": True}
    assistant = uag.Assistant(None, None, tokenizer)
    before = torch.stack(assistant.generate(target, **given).logits)
    change(target)
    after = torch.stack(assistant.generate(target, **given).logits)
    plain = torch.stack(target.generate(**given).logits)
    torch.testing.assert_close(after, plain, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(before, after, rtol=1e-3, atol=1e-3)


def test_model_that_computes_something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A factor that no module shows."""
    target, tokenizer = tiny_target("llama")
    forward = type(target.model.layers[0].mlp).forward
    monkeypatch.setattr(type(target.model.layers[0].mlp), "forward", lambda self, x: 0.5 * forward(self, x))
    given = left_padded(PROMPTS[:1]) | GREEDY
    assistant = uag.Assistant(None, None, tokenizer, trust_changes=True)
    assert assistant.generate(target, **given).equal(target.generate(**given))


def test_a_description_that_lacks_a_soft_cap_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It changes the logits by less than other faults: 0.00005 of their deviation."""
    target = copy.deepcopy(made("Gemma 2"))
    target.set_attn_implementation("eager")  # older transformers' sdpa has no soft cap
    ids = torch.arange(5, 25)[None]
    given: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pad_token_id": 0} | GREEDY
    assistant = uag.Assistant(None)
    monkeypatch.setattr(models, "attention_of", lambda _: "sdpa")  # which is read as without it
    assistant.generate(target, **given)
    assert passes_of(lambda: assistant.generate(target, **given)) == (0, 0)
    monkeypatch.undo()
    target = copy.deepcopy(target)
    assistant.generate(target, **given)
    assert passes_of(lambda: assistant.generate(target, **given))[0] > 0


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@torch.no_grad()
def test_tokens_do_not_see_values_that_are_not_finite_behind_them(value: float) -> None:
    model = made("Llama")
    model.get_input_embeddings().weight[-1] = value
    decoder = decoder_of(model, "model")
    assert isinstance(decoder, Decoder), decoder
    cache = DynamicCache(config=model.config)
    model(torch.arange(9)[None], **{caches.CACHE: cache})
    logits = []
    for last in (5, VOCAB_SIZE - 1):
        inputs = {"input_ids": torch.tensor([[3, 4, last]]), "use_cache": True, caches.CACHE: cache}
        with OwnKernels(model).running():
            found = one_call.run(decoder, inputs, 3)
        assert found is not None
        logits.append(found.logits[0, :2])
        caches.crop(cache, 3)
    assert logits[0].equal(logits[1])
    assert not logits[0].isnan().any()


@pytest.mark.parametrize(
    "change",
    [
        {"output_attentions": True},
        {"attention_mask": torch.tensor([[1] * 4 + [0] + [1] * 6])},
        {"position_ids": torch.tensor([[20, 21]])},
        {"input_ids": torch.tensor([[3, 10_000]])},
        {caches.CACHE: DynamicCache()},
    ],
)
@torch.no_grad()
def test_unusual_inputs_are_left_to_the_model(change: dict[str, Any]) -> None:
    model = made("Llama")
    decoder = decoder_of(model, "model")
    assert isinstance(decoder, Decoder), decoder
    cache = DynamicCache(config=model.config)
    model(torch.arange(9)[None], **{caches.CACHE: cache})
    inputs = {"input_ids": torch.tensor([[3, 4]]), "position_ids": torch.tensor([[9, 10]]), caches.CACHE: cache}
    with OwnKernels(model).running():
        assert one_call.run(decoder, inputs | change, 2) is None
        assert cache.get_seq_length() == 9
        assert one_call.run(decoder, inputs, 2) is not None
    assert cache.get_seq_length() == 11
    with torch.enable_grad(), OwnKernels(model).running():
        assert one_call.run(decoder, inputs, 2) is None


def test_passes_that_need_the_model_are_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that cannot run in one call, though the trial's could, is counted."""
    target, tokenizer = tiny_target("llama")
    given = left_padded(PROMPTS[:1]) | GREEDY
    assistant = uag.Assistant(None, None, tokenizer)
    assistant.generate(target, **given)
    assert assistant.stats.is_draft_independent
    run, calls = one_call.run, []

    def refusing(*args: Any) -> Any:
        calls.append(args)
        if len(calls) % 2:
            return run(*args)
        operations.pass_on("a whole pass")
        return None

    monkeypatch.setattr(one_call, "run", refusing)
    assert assistant.generate(target, **given).equal(target.generate(**given))
    assert "a whole pass" in assistant.stats.draft_dependence
