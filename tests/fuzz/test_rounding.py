"""Which differences of two outputs are the target's own rounding."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import TopKLogitsWarper

from tests.fuzz.rounding import MARGIN, _forms, is_rounding, sampling_noise
from tests.fuzz.targets import built
from tests.support.calls import left_padded
from tests.support.differences import differences
from tests.support.stubs import StubTarget
from uag.bench.equality import Difference
from uag.hf.cache.caches import CACHE


class WidthDependentTarget(StubTarget):
    """Selects id 2 in a one-token pass and id 3 in a block, by a margin that the test sets."""

    def __init__(self, margin: float) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, input_ids: torch.Tensor, **_: Any) -> SimpleNamespace:
        logits = torch.zeros(*input_ids.shape, 5)
        logits[..., 2] = 1.0
        logits[..., 3] = 1.0 + (self.margin if input_ids.shape[1] > 1 else -self.margin)
        return SimpleNamespace(logits=logits, **{CACHE: None})


@pytest.mark.parametrize(
    ("margin", "arm_id", "expected"),
    [(MARGIN / 10, 3, True), (MARGIN * 10, 3, False), (MARGIN / 10, 4, False), (-MARGIN / 10, 3, False)],
    ids=["close", "wide margin", "no block selects it", "plain's token is not selected alone"],
)
def test_replay_excuses_a_close_difference_that_both_forms_show(margin: float, arm_id: int, expected: bool) -> None:
    difference, plain_ids = Difference(row=0, step=2, plain_id=2, arm_id=arm_id), torch.tensor([[2, 2, 2, 2]])
    assert is_rounding(WidthDependentTarget(margin), left_padded([[4, 4]]), plain_ids, difference) is expected


class WideTarget(StubTarget):
    """Selects id 2 before id 3 by 1e-5; in a block, both logits are larger by what the test sets."""

    def __init__(self, change: float) -> None:
        super().__init__()
        self.change = change

    def forward(self, input_ids: torch.Tensor, **_: Any) -> SimpleNamespace:
        logits = torch.zeros(*input_ids.shape, 5, dtype=torch.float64)
        logits[..., 2], logits[..., 3] = 1.0, 1.0 - 1e-5
        return SimpleNamespace(logits=logits + self.change * (input_ids.shape[1] > 1), **{CACHE: None})


@pytest.mark.parametrize(("change", "expected"), [(2e-5, True), (2e-6, False)])
def test_no_block_need_select_the_token_if_blocks_change_logits_by_more(change: float, expected: bool) -> None:
    difference, plain_ids = Difference(row=0, step=2, plain_id=2, arm_id=3), torch.tensor([[2, 2, 2, 2]])
    assert is_rounding(WideTarget(change), left_padded([[4, 4]]), plain_ids, difference) is expected


@pytest.mark.parametrize(("least", "expected"), [(1 - 1e-5, True), (0.5, False)])
def test_filters_see_the_change(least: float, expected: bool) -> None:
    def process(_: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        is_dropped = torch.tensor([False, False, False, True, False]) | ((logits > 0.1) & (logits < least))
        return logits.masked_fill(is_dropped, -torch.inf)

    difference, plain_ids = Difference(row=0, step=2, plain_id=2, arm_id=0), torch.tensor([[2, 2, 2, 2]])
    found = is_rounding(WideTarget(2e-5), left_padded([[4, 4]]), plain_ids, difference, process=process)
    assert found is expected


@pytest.mark.parametrize("name", ["MambaForCausalLM {'use_cache': True}", "LlamaForCausalLM {'use_cache': True}"])
def test_position_computed_alone_is_that_of_the_whole_text(name: str) -> None:
    model, _ = built(name)
    difference = Difference(row=0, step=4, plain_id=2, arm_id=3)
    alone, whole, *_ = _forms(model, left_padded([[4, 9, 7]]), torch.tensor([[5, 8, 6, 11, 2, 9]]), difference)
    torch.testing.assert_close(alone, whole, rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("margin", "arm_id", "expected"),
    [(0.01, 3, True), (0.01, 4, False), (0.0, 4, False)],
    ids=["as close as the two forms", "wide margin", "forms that agree"],
)
def test_half_precision_excuses_differences_as_large_as_of_two_forms(
    margin: float, arm_id: int, expected: bool
) -> None:
    target = WidthDependentTarget(margin)
    target.dtype = torch.bfloat16
    difference, plain_ids = Difference(row=0, step=2, plain_id=2, arm_id=arm_id), torch.tensor([[2, 2, 2, 2]])
    assert is_rounding(target, left_padded([[4, 4]]), plain_ids, difference) is expected


@pytest.mark.parametrize(("arm_id", "expected"), [(3, True), (4, False)], ids=["may be the first", "never the first"])
def test_in_half_precision_a_filter_may_pass_another_token(arm_id: int, expected: bool) -> None:
    target = WidthDependentTarget(0.01)
    target.dtype = torch.bfloat16
    difference, plain_ids = Difference(row=0, step=2, plain_id=2, arm_id=arm_id), torch.tensor([[2, 2, 2, 2]])
    process, inputs = TopKLogitsWarper(1), left_padded([[4, 4]])
    assert is_rounding(target, inputs, plain_ids, difference, seed=3, process=process) is expected


def test_sampling_noise_is_what_multinomial_adds() -> None:
    num_rows, vocabulary_size, num_steps = 3, 50, 6
    logits = torch.randn(num_steps, num_rows, vocabulary_size, generator=torch.Generator().manual_seed(7))
    torch.manual_seed(11)
    drawn = [torch.multinomial(step_logits.softmax(dim=-1), 1).squeeze(1) for step_logits in logits]
    state = torch.get_rng_state()
    for step in range(num_steps):
        for row in range(num_rows):
            noise = sampling_noise(11, step, num_rows, row, vocabulary_size, torch.device("cpu"))
            assert int((logits[step, row] + noise).argmax()) == int(drawn[step][row])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([3.0, -torch.inf, 1.0001], True),
        ([-torch.inf, 1.0, 1.0001], False),
        ([3.0, -torch.inf, 1.1], False),
        ([3.0, torch.nan, -torch.inf], False),
    ],
    ids=["near tie", "the best token", "no tie", "not a number"],
)
def test_another_token_may_pass_a_filter_in_a_near_tie(scores: list[float], expected: bool) -> None:
    one = {"scores": (torch.tensor([[3.0, 1.0, -torch.inf]]),)}
    found = list(differences(one, {"scores": (torch.tensor([scores]),)}, None, 1e-3))
    assert (not found) == expected
