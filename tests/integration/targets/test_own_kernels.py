"""Calls with uag's kernels, layer by layer, equal plain `generate` in float32, and leave the models unchanged."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import uag
from tests.support.callers import raises_at
from tests.support.calls import GREEDY, PROMPTS, SAMPLED, compare, left_padded
from tests.support.grids import covering
from tests.support.kernels import needs_kernels
from tests.support.models import tiny_model, tiny_of_class
from uag.hf import devices
from uag.kernels import FEW_ROWS, kernel

pytestmark = [
    needs_kernels,
    pytest.mark.usefixtures("layer_by_layer"),
]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    rows: list[int] = []

    def noting(name: str) -> Any:
        product = getattr(kernel, name)

        def run(x: torch.Tensor, weight: Any, bias: Any) -> Any:
            rows.append(x.numel() // x.shape[-1])
            return product(x, weight, bias)

        return run

    for name in ("linear", "conv1d"):
        monkeypatch.setattr(kernel, name, noting(name))
    yield rows
    for kind in ("gpt2", "llama"):
        assert not any("forward" in vars(layer) for layer in model(kind).modules())


def model(kind: str, seed: int = 0) -> Any:
    return tiny_model(kind, 700, seed)


@covering("kind, num_rows, options", ("gpt2", "llama"), (1, 3), (GREEDY, SAMPLED), strength=1)
def test_calls_equal_plain_generate(kind: str, num_rows: int, options: dict[str, Any], taken: list[int]) -> None:
    target, inputs = model(kind), left_padded(PROMPTS[:num_rows])
    assert compare(target, inputs | options).num_accepted_tokens
    assert max(taken) > num_rows


def test_the_draft_and_calls_without_one_take_it_too(taken: list[int]) -> None:
    target, draft, given = model("llama"), model("llama", seed=1), left_padded(PROMPTS[:1]) | GREEDY
    compare(target, given, uag.Assistant(None))
    num_plain = len(taken)
    assert num_plain
    assistant = uag.Assistant(draft, num_candidate_tokens=3, draft_weights="model")
    assert compare(target, given, assistant).num_draft_forwards
    assert len(taken) > 2 * num_plain
    assert not any("forward" in vars(layer) for layer in draft.modules())


@pytest.mark.parametrize("num_rows", [1, 9])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_half_precision_target_and_draft_take_it(num_rows: int, dtype: torch.dtype, taken: list[int]) -> None:
    target, draft = (copy.deepcopy(model("llama", seed=seed)).to(dtype) for seed in (0, 1))
    given = left_padded((PROMPTS * num_rows)[:num_rows]) | GREEDY
    reference = uag.Assistant(None)
    assistant = uag.Assistant(draft, num_candidate_tokens=3, draft_weights="model")
    expected = reference.generate(target, **given)
    num_plain = len(taken)
    assert assistant.generate(target, **given).equal(expected)
    assert len(taken) > num_plain > 0
    assert reference.stats.is_draft_independent
    assert assistant.stats.is_draft_independent
    assert not any("forward" in vars(layer) for one in (target, draft) for layer in one.modules())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_half_precision_prompts_take_it(dtype: torch.dtype, taken: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Target and draft read the prompt with it, alone in its pass; the draft changes no bit."""
    monkeypatch.setattr(kernel, "LEVEL", "AVX2")
    monkeypatch.setattr(devices, "multiplies", lambda _: False)
    target, draft = (copy.deepcopy(model("gpt2", seed=seed)).to(dtype) for seed in (0, 1))
    ids = torch.arange(100, 100 + 2 * FEW_ROWS)[None]
    given: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "return_dict_in_generate": True}
    given |= {"max_new_tokens": 12, "do_sample": False, "output_logits": True}
    logits, prompts = [], []
    for drafts in (None, draft):
        assistant = uag.Assistant(drafts, num_candidate_tokens=3)
        taken.clear()
        output = assistant.generate(target, **given)
        assert assistant.stats.is_draft_independent
        logits.append(torch.stack(output.logits))
        prompts.append(max(taken) if taken.count(max(taken)) > 1 else 0)
    assert assistant.stats.num_draft_forwards
    assert logits[0].equal(logits[1])
    assert [rows > FEW_ROWS for rows in prompts] == [dtype is not torch.float32] * 2
    plain = torch.stack(target.generate(**given).logits)
    assert plain[0].equal(logits[0][0]) or dtype is not torch.float32
    left_out = uag.Assistant(draft, num_candidate_tokens=3, own_kernels=False).generate(target, **given)
    assert left_out.logits[0].equal(plain[0])


def test_it_can_be_left_out(taken: list[int]) -> None:
    target, given = model("llama"), left_padded(PROMPTS[:1]) | GREEDY
    compare(target, given, uag.Assistant(model("llama", seed=1), num_candidate_tokens=3, own_kernels=False))
    assistant = uag.Assistant(None, own_kernels=False)
    compare(target, given, assistant)
    assert not taken
    assert not assistant.stats.is_draft_independent
    reason = "draft-independent: not certain, since the target does not use uag's kernels (own_kernels=False)"
    assert reason in str(assistant.stats).splitlines()


def test_an_error_in_the_middle_of_a_call_leaves_the_models_alone(taken: list[int]) -> None:
    target, inputs = model("llama"), left_padded(PROMPTS[:1])
    assistant = uag.Assistant(model("llama", seed=1), num_candidate_tokens=3)
    with pytest.raises(ValueError, match="the user's own error"):
        assistant.generate(target, **inputs, **GREEDY, logits_processor=[raises_at(10)])
    assert len(taken) > 20


def test_attention_weights_are_returned_as_in_plain_decoding(taken: list[int]) -> None:
    """The kernels do not compute them."""
    target = copy.deepcopy(model("llama"))
    target.set_attn_implementation("eager")
    given = left_padded(PROMPTS[:1]) | GREEDY | {"return_dict_in_generate": True, "output_attentions": True}
    found, plain = uag.Assistant(None).generate(target, **given), target.generate(**given)
    assert not taken
    for one, other in zip(found.attentions, plain.attentions, strict=True):
        assert all(map(torch.equal, one, other))


def _by_width(x: torch.Tensor) -> Any:
    """Differ for two rows of four tokens, which the trial computes once."""
    return 1.0 + 1e-6 * (x.shape[:-1] == (2, 4))


def _by_padding(x: torch.Tensor) -> Any:
    """Differ for the single token of one row, which the trial computes once: that of the row without its padding."""
    return 1.0 + 1e-6 * (x.shape[:-1] == (1, 1))


@pytest.mark.parametrize(("fault", "place"), [(_by_width, "0 of a block of 4"), (_by_padding, "0 of a block of 1")])
def test_the_trial_finds_rounding_by_width_or_padding(fault: Any, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    linear = kernel.linear
    monkeypatch.setattr(kernel, "linear", lambda x, weight, bias=None: linear(x, weight, bias) * fault(x))
    assistant = uag.Assistant(None)
    assistant.generate(model("llama"), **left_padded(PROMPTS[:2]), max_new_tokens=1)
    assert f"computes a token differently in place {place} tokens" in assistant.stats.draft_dependence


def test_mixture_that_cannot_read_blocks_keeps_its_kernels_in_half_precision(taken: list[int]) -> None:
    target, assistant = tiny_of_class("MiniMaxForCausalLM").to(torch.bfloat16), uag.Assistant.from_prompt_lookup()
    given = left_padded(PROMPTS[:1]) | GREEDY
    for _ in range(3):  # a trial that raises runs twice
        taken.clear()
        assistant.generate(target, **given)
    assert taken
