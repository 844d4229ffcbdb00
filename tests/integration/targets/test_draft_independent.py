"""Ids, logits, scores and the generator's state are the same for every draft, bit for bit: with uag's kernels, or in
plain decoding, to which `draft_independent=True` falls back where the kernels cannot keep the promise."""

from typing import Any

import pytest
import torch

import uag
from tests.support.calls import batch, draft_options, left_padded, pair
from tests.support.differences import differences
from tests.support.grids import covering
from tests.support.kernels import needs_kernels
from tests.support.models import HYBRID_DRAFTS, tiny_model, tiny_of_class, tiny_target
from tests.support.walk import SharedDrafter, independence_of
from uag.errors import OptionError
from uag.hf import required_names
from uag.hf.cache.caches import CACHE

PLAIN: dict[str, Any] = {"own_kernels": False, "draft_independent": True}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)

ROWS = [[5, 9, 2, 7, 11, 3, 8], [4, 6, 10], [12, 3, 5, 9, 6]]
ATTENTION = "llama", "gpt2", "mistral", "gemma3", "mixtral", "t5", "bart", "qwen3"
HYBRIDS = "lfm2", "qwen3_5", "qwen3_next", "mamba2", "falcon_h1", "granitemoehybrid", "bamba", "nemotron_h", "zamba2"


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


@needs_kernels
@covering("name, dtype", (*ATTENTION, *HYBRIDS), DTYPES, strength=1)
def test_logits_of_every_source_are_identical(name: str, dtype: torch.dtype) -> None:
    if name == "nemotron_h" and required_names.release() < (5, 23):
        pytest.skip("its states cannot be cropped")
    if name in ATTENTION:
        target, tokenizer = tiny_target(name)
    else:
        model_type, options = HYBRID_DRAFTS[name]
        target, tokenizer = tiny_model(model_type, 300, **options), tiny_target("gpt2")[1]
    num_new = 14 if name in ATTENTION else 24
    for num_rows, do_sample in ((1, True), (3, False)):
        inputs = left_padded(ROWS[:num_rows])
        reference = check_sources(target.to(dtype), tokenizer, inputs, max_new_tokens=num_new, do_sample=do_sample)
    if dtype is torch.float32 and name in ATTENTION:
        check_rounding(reference, target, inputs, max_new_tokens=num_new, do_sample=False)


def check_rounding(found: Any, target: Any, inputs: dict[str, Any], **options: Any) -> None:
    """Compare with plain decoding, up to rounding."""
    plain = target.generate(**inputs, **options, return_dict_in_generate=True, output_logits=True)
    assert torch.equal(found.sequences, plain.sequences)
    for one, other in zip(found.logits, plain.logits, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)
    assert type(found[CACHE]) is type(plain[CACHE])
    for path, detail in differences(plain[CACHE], found[CACHE], inputs["attention_mask"], 1e-3):
        raise AssertionError(f"{path}: {detail}")


@needs_kernels
@pytest.mark.parametrize(
    "name", ["DeepseekV2ForCausalLM", "GraniteSWAForCausalLM", "Llama4ForCausalLM", "OpenAIGPTLMHeadModel"]
)
def test_functions_of_single_classes_are_identical(name: str) -> None:
    """Complex rotary positions, sinks as a scale, and products of parts of tensors."""
    assert independence_of(name, tiny_of_class(name), [torch.float32, torch.bfloat16]) == "yes"


@needs_kernels
def test_mixture_whose_first_token_rounding_sends_to_other_experts_keeps_its_kernels() -> None:
    """In bfloat16, this model's first token is such a token, on some processors."""
    name = "Qwen3VLMoeForConditionalGeneration"
    assert independence_of(name, tiny_of_class(name), [torch.bfloat16]) == "yes"


@pytest.mark.slow  # test_every_class.py has all other classes
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("do_sample", [False, True], ids=("greedy", "sampled"))
@needs_kernels
def test_logits_of_the_demo_pair_are_identical(dtype: torch.dtype, do_sample: bool) -> None:
    demo = uag.load_pair(dtype=str(dtype).removeprefix("torch."))
    draft = demo.draft, demo.draft_tokenizer
    prompts = ["def add(a, b):\n    return", "import numpy as np\nx = np.", "class Point:"]
    for num_rows in (1, 3):
        inputs = dict(demo.target_tokenizer(prompts[:num_rows], return_tensors="pt", padding=True, padding_side="left"))
        inputs.pop("token_type_ids", None)
        options = {"max_new_tokens": 32, "do_sample": do_sample}
        check_sources(demo.target, demo.target_tokenizer, inputs, draft, **options)


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


@needs_kernels
@covering("num_rows, value", (1, 3), (float("nan"), float("inf"), 1e38), strength=1)
def test_candidates_and_padding_that_overflow_leave_the_output_alone(value: float, num_rows: int) -> None:
    target, tokenizer = tiny_target("llama")
    head = target.lm_head.weight.detach().clone()
    inputs = left_padded(ROWS[:num_rows])
    options: dict[str, Any] = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0}
    assistant = uag.Assistant(None, None, tokenizer)
    written = set(run(assistant, target, inputs, **options)[0].sequences.unique().tolist())
    bad = next(i for i in range(1, 99) if i not in written)
    size = head.shape[0]
    with torch.no_grad():
        target.model.embed_tokens.weight = torch.nn.Parameter(head.clone())
        target.lm_head.weight = torch.nn.Parameter(head)
        target.model.embed_tokens.weight[bad] = value
        if num_rows == 1:
            target.model.embed_tokens.weight[0] = value  # of padding, which rows of a prompt have too
    reference, state = run(assistant, target, inputs, **options)
    assert not any(step.isnan().any() for step in reference.logits)
    known = reference.sequences[:, inputs["input_ids"].shape[1] :].tolist()
    drafter = SharedDrafter([[*row[:6], bad, *row[7:]] for row in known], size, 1.0)
    assisted = uag.Assistant(None, None, tokenizer, drafter=drafter, num_candidate_tokens=7)
    output, new_state = run(assisted, target, inputs, **options)
    assert assisted.stats.num_accepted_tokens > 0
    assert all(map(torch.equal, output.logits, reference.logits))
    assert torch.equal(output.sequences, reference.sequences)
    assert torch.equal(new_state, state)
    is_repeated = any("NaN" in reason for reason in assisted.stats.fallbacks)
    assert not is_repeated  # the kernels do not read masked keys
