"""Ids, logits, scores and the generator's state are the same for every draft, bit for bit: with uag's kernels, or in
plain decoding, to which `draft_independent=True` falls back where the kernels cannot keep the promise."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import DynamicCache

import uag
from tests.support.calls import batch, draft_options, left_padded, pair
from tests.support.grids import covering
from tests.support.models import HYBRID_DRAFTS, tiny_model, tiny_of_class, tiny_target
from tests.support.walk import SharedDrafter, independence_of
from uag.errors import OptionError
from uag.hf.cache.caches import CACHE
from uag.kernels import kernel

PLAIN: dict[str, Any] = {"own_kernels": False, "draft_independent": True}
needs_kernels = pytest.mark.skipif(not kernel.LEVEL, reason="no kernels were built")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
CLASSES = (
    "bloom", "cohere", "falcon", "gemma2", "gemma3", "glm", "gpt2", "gpt_bigcode", "gpt_neox", "gptj",
    "granite", "llama", "mistral", "olmo", "opt", "phi", "phi3", "qwen2", "qwen2-window", "qwen3", "stablelm",
    "starcoder2",
)  # fmt: skip

HYBRIDS = "lfm2", "qwen3_5", "qwen3_next", "mamba2", "falcon_h1", "granitemoehybrid", "bamba"


@pytest.fixture(params=(1, 2), ids=("one thread", "two threads"))
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def run(assistant: uag.Assistant, target: Any, inputs: dict[str, Any], **options: Any) -> tuple[Any, torch.Tensor]:
    torch.manual_seed(7)
    wanted: dict[str, Any] = {"return_dict_in_generate": True, "output_logits": True, "output_scores": True}
    output = assistant.generate(target, **inputs, **wanted, **options)
    return output, torch.get_rng_state()


def check_sources(target: Any, tokenizer: Any, inputs: dict[str, Any], draft: Any = None, **options: Any) -> Any:
    """Compare five sources of candidates with the reference, and return its output."""
    reference, state = run(uag.Assistant(None, None, tokenizer), target, inputs, **options)
    known = reference.sequences[:, -len(reference.logits) :].tolist()
    size = reference.logits[0].shape[1]
    sources: dict[str, tuple[tuple[Any, Any], dict[str, Any]]] = {
        name: ((None, None), {"drafter": SharedDrafter(known, size, share), "num_candidate_tokens": number})
        for name, share, number in (("right", 1.0, 7), ("wrong", 0.0, 7), ("three", 0.6, 3))
    }
    if draft is not None:
        sources |= {"draft": (draft, {}), "draft, three": (draft, {"num_candidate_tokens": 3})}
    for name, (models, own) in sources.items():
        assistant = uag.Assistant(models[0], models[1], tokenizer, **own)
        output, new_state = run(assistant, target, inputs, **options)
        assert assistant.stats.is_draft_independent, assistant.stats.draft_dependence
        assert torch.equal(output.sequences, reference.sequences), name
        for kind in ("logits", "scores"):
            one, other = getattr(output, kind), getattr(reference, kind)
            steps = [step for step, both in enumerate(zip(one, other, strict=True)) if not torch.equal(*both)]
            assert not steps, (name, kind, steps)
        assert torch.equal(new_state, state), name
        if name == "right":  # a test without accepted candidates would find nothing
            assert assistant.stats.num_target_forwards < len(reference.logits) / 2
    return reference


def inputs_of(tokenizer: Any, num_rows: int) -> dict[str, Any]:
    if num_rows == 1:
        return batch(tokenizer)
    return left_padded([[5, 9, 2, 7, 11, 3, 8], [4, 6, 10], [12, 3, 5, 9, 6]])


def check_class(name: str, dtype: torch.dtype) -> None:
    target, tokenizer = tiny_target(name)
    for num_rows, do_sample in ((1, True), (3, False)):
        inputs = inputs_of(tokenizer, num_rows)
        check_sources(target.to(dtype), tokenizer, inputs, max_new_tokens=14, do_sample=do_sample)


@needs_kernels
@covering("name, dtype", ("llama", "gpt2", "mistral", "gemma3", "mixtral", "t5", "bart", "qwen3"), DTYPES, strength=1)
def test_logits_of_every_source_are_identical(name: str, dtype: torch.dtype) -> None:
    check_class(name, dtype)


@needs_kernels
@covering("name, dtype", HYBRIDS, DTYPES, strength=1)
def test_logits_of_recurrences_and_convolutions_are_identical(name: str, dtype: torch.dtype) -> None:
    model_type, options = HYBRID_DRAFTS[name]
    target, tokenizer = tiny_model(model_type, 300, **options).to(dtype), tiny_target("gpt2")[1]
    for num_rows, do_sample in ((1, True), (3, False)):
        inputs = left_padded([[5, 9, 2, 7, 11, 3, 8], [4, 6, 10], [12, 3, 5, 9, 6]][:num_rows])
        check_sources(target, tokenizer, inputs, max_new_tokens=24, do_sample=do_sample)


def test_mixture_whose_first_token_rounding_sends_to_other_experts_keeps_its_kernels() -> None:
    """In bfloat16, this model's first token is such a token, on some processors."""
    name = "Qwen3VLMoeForConditionalGeneration"
    assert independence_of(name, tiny_of_class(name), [torch.bfloat16]) == "yes"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CLASSES)
@needs_kernels
def test_logits_of_every_source_in_every_class_are_identical(name: str, dtype: torch.dtype, threads: int) -> None:
    check_class(name, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("do_sample", [False, True], ids=("greedy", "sampled"))
@needs_kernels
def test_logits_of_the_demo_pair_are_identical(dtype: torch.dtype, do_sample: bool, threads: int) -> None:
    demo = uag.load_pair(dtype=str(dtype).removeprefix("torch."))
    draft = demo.draft, demo.draft_tokenizer
    prompts = ["def add(a, b):\n    return", "import numpy as np\nx = np.", "class Point:"]
    for num_rows in (1, 3):
        inputs = dict(demo.target_tokenizer(prompts[:num_rows], return_tensors="pt", padding=True, padding_side="left"))
        inputs.pop("token_type_ids", None)
        options = {"max_new_tokens": 32, "do_sample": do_sample}
        check_sources(demo.target, demo.target_tokenizer, inputs, draft, **options)


@needs_kernels
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3", "gpt2"])
def test_output_in_float32_equals_plain_decoding_up_to_rounding(name: str) -> None:
    target, tokenizer = tiny_target(name)
    inputs = inputs_of(tokenizer, 3)
    options: dict[str, Any] = {"max_new_tokens": 16, "do_sample": False}
    assistant = uag.Assistant(None, None, tokenizer)
    output, _ = run(assistant, target, inputs, **options)
    assert (assistant.stats.strategy, assistant.stats.not_drafting) == ("plain", "")
    plain = target.generate(**inputs, **options, return_dict_in_generate=True, output_logits=True)
    assert torch.equal(output.sequences, plain.sequences)
    for one, other in zip(output.logits, plain.logits, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)
    assert type(output[CACHE]) is DynamicCache
    for one, other in zip(output[CACHE].layers, plain[CACHE].layers, strict=True):
        assert type(one) is type(other)
        torch.testing.assert_close(one.keys[-1], other.keys[-1], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("llama", {}, "draft_independent=True: the target does not use uag's kernels"),
        ("t5", {}, "draft_independent=True"),
        ("mixtral", {"do_sample": True}, "draft_independent=True"),
        ("llama", {"use_cache": False}, "the target keeps no cache that can be rewound"),
        ("llama", {"output_hidden_states": True}, "hidden states of blocks are not recorded"),
        ("llama", {"max_new_tokens": 8, "cache_implementation": "static"}, "draft_independent=True"),
    ],
)
def test_calls_that_could_not_keep_the_promise_decode_plainly(name: str, options: dict[str, Any], reason: str) -> None:
    target, tokenizer = tiny_target(name)
    given: dict[str, Any] = {**batch(tokenizer), "max_new_tokens": 12, "do_sample": False} | options
    given |= {"return_dict_in_generate": True, "output_logits": True}
    torch.manual_seed(7)
    expected = target.generate(**given)
    for drafter in (None, SharedDrafter(expected.sequences[:, -12:].tolist(), expected.logits[0].shape[1], 0.6)):
        assistant = uag.Assistant(None, None, tokenizer, drafter=drafter, **PLAIN)
        torch.manual_seed(7)
        output = assistant.generate(target, **given)
        assert torch.equal(output.sequences, expected.sequences)
        assert all(map(torch.equal, output.logits, expected.logits))
        assert assistant.stats.is_draft_independent
        assert assistant.stats.num_candidate_tokens == 0
        reasons = "; ".join(assistant.stats.fallbacks)
        assert (reason in reasons and "falls back to plain decoding" in reasons) == (drafter is not None)


def test_rejection_sampling_contradicts_the_option() -> None:
    with pytest.raises(OptionError, match="draft_independent=True promises"):
        uag.Assistant(None, None, pair()[3], draft_independent=True, sampling="rejection")


def test_installed_option_holds_until_it_is_uninstalled() -> None:
    target, tokenizer = tiny_target("mpt")
    models = draft_options("gpt2") | {"tokenizer": tokenizer}
    given: dict[str, Any] = {**batch(tokenizer), "max_new_tokens": 12, "do_sample": False}
    with pytest.raises(OptionError, match="draft_independent=8 must be True or False"):
        uag.install(draft_independent=8)
    try:
        uag.install(draft_independent=True)
        uag.install()  # keeps it
        target.generate(**given, **models)
        assert "draft_independent=True" in uag.last_stats(target).fallbacks[0]
        uag.uninstall()
        uag.install()
        target.generate(**given, **models)
        assert not uag.last_stats(target).is_draft_independent
    finally:
        uag.uninstall()
