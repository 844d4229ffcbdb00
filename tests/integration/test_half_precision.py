"""Half precision, `exact_half_precision=True`: blocks give the logits of single tokens bit for bit.

Another machine's matrix products may round a block otherwise than single rows. There the statistics say so, and these
tests are skipped.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

import uag
from tests.support.calls import OracleDrafter, left_padded
from tests.support.models import tiny_target
from uag.errors import OptionError
from uag.products import FastProducts

NEW = 50
NAMES = ("llama", "mistral", "starcoder2", "gpt2", "phi3", "t5")


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    """How sums are split among threads decides how they are rounded."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def target_of(name: str, dtype: torch.dtype) -> Any:
    return tiny_target(name)[0].to(dtype)


def prompts(*lengths: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return left_padded([torch.randint(1, 300, (length,), generator=generator).tolist() for length in lengths])


def compare(
    target: Any, inputs: dict[str, torch.Tensor], spoil: float, is_exact: bool = True, **options: Any
) -> tuple[list[bool], uag.Stats]:
    """Decode plainly and with an oracle's candidates; returns whether each step's logits are equal, and the figures."""
    options = {
        "max_new_tokens": NEW,
        "return_dict_in_generate": True,
        "output_logits": True,
        "pad_token_id": 0,
    } | options
    torch.manual_seed(3)
    expected = target.generate(**inputs, **options)
    state = torch.get_rng_state()
    width = 1 if target.config.is_encoder_decoder else inputs["input_ids"].shape[1]
    outputs = [row + [0] * NEW for row in expected.sequences[:, width:].tolist()]
    drafter = OracleDrafter(outputs, target.get_output_embeddings().weight.shape[0], spoil)
    assistant = uag.Assistant(None, drafter=drafter, num_candidate_tokens=5, exact_half_precision=is_exact)
    torch.manual_seed(3)
    found = assistant.generate(target, **inputs, **options)
    if is_exact and any("exact_half_precision" in reason for reason in assistant.stats.fallbacks):
        pytest.skip("this machine's matrix products round blocks otherwise than single rows")
    assert 0 < assistant.stats.num_accepted_tokens < assistant.stats.num_candidate_tokens
    assert found.sequences.tolist() == expected.sequences.tolist()
    assert torch.equal(torch.get_rng_state(), state)
    return [torch.equal(a, b) for a, b in zip(expected.logits, found.logits, strict=True)], assistant.stats


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("do_sample", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_plain_decoding_bit_for_bit(name: str, do_sample: bool, dtype: torch.dtype) -> None:
    target = target_of(name, dtype)
    for spoil in (3.3, 1.4):
        are_equal, _ = compare(target, prompts(60), spoil, do_sample=do_sample)
        assert all(are_equal)


def test_rows_of_a_batch_go_in_step_and_are_equal_too() -> None:
    are_equal, stats = compare(target_of("llama", torch.bfloat16), prompts(60, 41, 33), 3.3, do_sample=False)
    assert all(are_equal)
    assert len({row.num_rounds for row in stats.rows}) == 1


def test_without_it_blocks_round_otherwise() -> None:
    """What the option is for; where attention gives the same in every form there is nothing to show."""
    target = target_of("gpt2", torch.bfloat16)
    compare(target, prompts(60), 3.3, do_sample=False)  # skips where products are in the way
    are_equal, stats = compare(target, prompts(60), 3.3, is_exact=False, do_sample=False)
    if all(are_equal):
        pytest.skip("this machine's attention rounds blocks as single tokens")
    assert not stats.fallbacks


def test_rows_without_records_stay_together() -> None:
    """Rows that go apart are moved, and padding beside a row's keys changes how they are summed."""
    target, inputs = target_of("starcoder2", torch.bfloat16), prompts(60, 41, 33)
    options: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
    expected = target.generate(**inputs, **options)
    outputs = [row + [0] * NEW for row in expected[:, 60:].tolist()]
    drafter = OracleDrafter(outputs, target.get_output_embeddings().weight.shape[0], 3.3)
    assistant = uag.Assistant(None, drafter=drafter, num_candidate_tokens=5, exact_half_precision=True)
    assert assistant.generate(target, **inputs, **options).tolist() == expected.tolist()
    if not assistant.stats.fallbacks:
        assert len({row.num_rounds for row in assistant.stats.rows}) == 1


@pytest.mark.parametrize("is_exact", [False, True])
def test_products_keep_their_form(is_exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Faster forms of products round otherwise."""
    given: list[Any] = []

    class Watched(FastProducts):
        def __init__(self, model: Any = None) -> None:
            given.append(model)
            super().__init__(model)

    monkeypatch.setattr("uag.decoding.loop.FastProducts", Watched)
    target = target_of("llama", torch.bfloat16)
    compare(target, prompts(60), 3.3, is_exact, do_sample=False)
    assert given == [None if is_exact else target]


def test_float32_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    target = target_of("llama", torch.float32)
    entered: list[object] = []
    monkeypatch.setattr("uag.decoding.one_query.OneQuery.__enter__", lambda self: entered.append(self))
    _, stats = compare(target, prompts(60), 3.3, do_sample=False)
    assert not entered
    assert not stats.fallbacks


def test_a_target_whose_blocks_differ_is_told_of() -> None:
    """A layer that computes rows together otherwise than rows alone: noticed, recorded, decoded all the same."""
    target = tiny_target("llama")[0].to(torch.bfloat16)
    inner = target.lm_head.forward

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = inner(hidden)
        return logits * (1 if hidden.shape[1] == 1 else 1 + 2**-6)

    target.lm_head.forward = forward
    inputs = prompts(12)
    expected = target.generate(**inputs, max_new_tokens=20, do_sample=False)
    drafter = OracleDrafter([expected[0, 12:].tolist() + [0] * 20], target.lm_head.weight.shape[0], 0)
    assistant = uag.Assistant(None, drafter=drafter, num_candidate_tokens=5, exact_half_precision=True)
    with pytest.warns(UserWarning, match="exact_half_precision"):
        output = assistant.generate(target, **inputs, max_new_tokens=20, do_sample=False)
    assert output.tolist() == expected.tolist()
    assert len(assistant.stats.fallbacks) == 1
    assert "LlamaForCausalLM in bfloat16 on cpu" in assistant.stats.fallbacks[0]


def test_the_option_is_a_truth_value() -> None:
    with pytest.raises(OptionError, match="exact_half_precision='yes' must be True or False"):
        uag.Assistant(None, exact_half_precision="yes")  # type: ignore[arg-type]
