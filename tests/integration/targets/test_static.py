"""Static caches, compiled and not: the output equals plain decoding with the same cache and compile settings."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import CompileConfig, StaticCache

import uag
from tests.support import wrappers
from tests.support.calls import GREEDY, assert_drafted, batch, compare, oracle, pair, raises_at, seeded
from tests.support.models import tiny_target
from uag.hf import passes

CLASSES = ("llama", "qwen2", "qwen3", "mistral", "gemma3", "gpt2")
WITH_WINDOWS = ("mistral", "gemma3")
STATIC: dict[str, Any] = {"cache_implementation": "static"}
SAMPLED: dict[str, Any] = {"max_new_tokens": 24, "do_sample": True, "temperature": 0.9, "top_k": 20}


def compiled(backend: str = "eager") -> dict[str, Any]:
    """Return options that compile on a CPU; the backend "eager" traces graphs and does not optimize them."""
    config = CompileConfig(backend=backend, mode="default" if backend == "inductor" else None)
    config._compile_all_devices = True
    return STATIC | {"compile_config": config}


def test_a_static_cache_that_is_not_used() -> None:
    target, tokenizer = tiny_target("llama")
    options = batch(tokenizer) | GREEDY | {"use_cache": False}
    plain = target.generate(**options, past_key_values=StaticCache(target.config, max_cache_len=400))
    assistant = oracle(target, tokenizer, plain, options["input_ids"].shape[1])
    ids = assistant.generate(target, **options, past_key_values=StaticCache(target.config, max_cache_len=400))
    assert ids.tolist() == plain.tolist()
    assert "keeps no cache that can be rewound" in assistant.stats.fallbacks[0]


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", CLASSES)
def test_static_caches(name: str, options: dict[str, Any], num_rows: int) -> None:
    """The prompts are longer than the windows of Mistral and Gemma 3, whose layers shift their slots in every pass."""
    target, tokenizer = tiny_target(name)
    stats = compare(target, batch(tokenizer, num_rows) | options | STATIC)
    assert_drafted(stats)
    assert stats.compile_s == 0.0
    in_lockstep = "rows advance in lockstep: windows of a static cache have the same length for all rows"
    assert stats.fallbacks == ([in_lockstep] if num_rows > 1 and name in WITH_WINDOWS else [])


@pytest.mark.parametrize("name", WITH_WINDOWS)
@pytest.mark.parametrize("num_tokens", [1, 2, 4, 7])
def test_a_window_that_fills_up_during_the_call(name: str, num_tokens: int) -> None:
    target, tokenizer = tiny_target(name)
    ids = batch(tokenizer)["input_ids"][:, -num_tokens:]
    for spoil in (1.5, 3, 5):
        assert_drafted(compare(target, {"input_ids": ids} | GREEDY | STATIC, spoil=spoil))


@pytest.mark.parametrize(("name", "num_rows", "options"), [("llama", 3, SAMPLED), ("mistral", 1, GREEDY)])
def test_compiled_passes(name: str, num_rows: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Few graphs, which can be replayed as CUDA graphs: tensors keep their sizes, and the cache its addresses.

    Also near the end of the cache, where fewer candidates fit than the next width has, and where a window fills up:
    then masks have two sizes, for the passes before and after.
    """
    target, tokenizer = tiny_target(name)
    window = getattr(target.config, "sliding_window", None) or 0
    given = batch(tokenizer, num_rows)
    if window:
        given = {key: value[:, -window // 2 :] for key, value in given.items()}
    given |= options | compiled()
    shapes: dict[int, set[Any]] = {}
    addresses = set()
    run = passes.run

    def recorded(forward: Any, inputs: dict[str, Any], *, has_own_graph: bool) -> Any:
        result = run(forward, inputs, has_own_graph=has_own_graph)
        if forward is target:  # the pass over the prompt
            return result
        masks = inputs["attention_mask"]
        tensors = [inputs["position_ids"], *(masks.values() if isinstance(masks, dict) else [masks])]
        shapes.setdefault(inputs["input_ids"].shape[1], set()).add(tuple(tensor.shape for tensor in tensors))
        layers = inputs["past_key_values"].layers
        kept = [tensor for layer in layers for tensor in (layer.keys, layer.values, layer.cumulative_length)]
        addresses.add(tuple(tensor.data_ptr() for tensor in kept))
        return result

    with monkeypatch.context() as patch:
        patch.setattr(passes, "run", recorded)
        first = compare(target, given)
    assert_drafted(first)
    assert {8} < set(shapes) <= {1, 2, 4, 8, 16}
    assert max(map(len, shapes.values())) == (2 if window else 1)
    assert len(addresses) == 1
    assert 0.0 < first.compile_s < first.target_s
    assert compare(target, given).compile_s == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES)
def test_passes_compiled_by_inductor(name: str) -> None:
    target, tokenizer = tiny_target(name)
    for num_rows in (1, 3):
        for options in (GREEDY, SAMPLED):
            assert_drafted(compare(target, batch(tokenizer, num_rows) | options | compiled("inductor")))


@pytest.mark.parametrize("wrap", [pytest.param(wrappers.compiled_forward, marks=pytest.mark.slow), wrappers.lora])
def test_wrapped_targets(wrap: Any) -> None:
    _, tokenizer, draft, draft_tokenizer = pair()
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=4)
    assert compare(wrap(pair()[0]), batch(tokenizer, 3) | GREEDY | STATIC, assistant).num_accepted_tokens > 0


@pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_rows_that_end_early_and_lag_behind(options: dict[str, Any]) -> None:
    target, tokenizer = tiny_target("llama")
    given = batch(tokenizer, 3) | STATIC | options | {"max_new_tokens": 40}
    expected = seeded(3, target.generate, **given)
    eos_ids = [row[-30].item() for row in expected[:2]]
    for spoil in (1.5, 3):
        assert_drafted(compare(target, given | {"eos_token_id": eos_ids, "pad_token_id": 0}, spoil=spoil))


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_a_cache_of_the_caller_continues(name: str) -> None:
    target, tokenizer = tiny_target(name)
    given = batch(tokenizer) | GREEDY
    length = given["input_ids"].shape[1]
    expected = target.generate(**given, past_key_values=StaticCache(config=target.config, max_cache_len=128))
    cache, assistant = StaticCache(config=target.config, max_cache_len=128), oracle(target, tokenizer, expected, length)
    half = GREEDY | {"max_new_tokens": 10, "past_key_values": cache}
    first = assistant.generate(target, given["input_ids"], **half)
    assert first.tolist() == expected[:, : length + 10].tolist()
    assert_drafted(assistant.stats)
    assert int(cache.get_seq_length()) == length + 9
    second = oracle(target, tokenizer, expected, length + 10).generate(target, first, **half)
    assert second.tolist() == expected[:, : length + 20].tolist()


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_an_error_in_the_middle_of_a_block_rolls_the_callers_cache_back(name: str) -> None:
    target, tokenizer = tiny_target(name)
    ids = batch(tokenizer)["input_ids"]
    expected, cache = target.generate(ids, **GREEDY), StaticCache(config=target.config, max_cache_len=128)
    assistant = oracle(target, tokenizer, expected, ids.shape[1], spoil=0)
    fails = raises_at(ids.shape[1] + 5)
    with pytest.raises(ValueError, match="the user's own error"):
        assistant.generate(target, ids, past_key_values=cache, logits_processor=[fails], **GREEDY)
    known = expected[:, : int(cache.get_seq_length()) + 1]
    options = GREEDY | {"max_new_tokens": expected.shape[1] - known.shape[1]}
    assert target.generate(known, past_key_values=cache, **options).equal(expected)


def test_scores_are_recorded() -> None:
    target, tokenizer = tiny_target("llama")
    given = batch(tokenizer) | GREEDY | STATIC | {"return_dict_in_generate": True, "output_scores": True}
    expected = target.generate(**given)
    assistant = oracle(target, tokenizer, expected.sequences, given["input_ids"].shape[1])
    output = assistant.generate(target, **given)
    assert_drafted(assistant.stats)
    assert len(output.scores) == len(expected.scores)
    for score, wanted in zip(output.scores, expected.scores, strict=True):
        torch.testing.assert_close(score, wanted, atol=1e-4, rtol=1e-4)
