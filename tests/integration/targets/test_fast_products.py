"""Calls with fast products equal plain `generate`, and leave the models unchanged."""

import copy
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

import uag
from tests.support.calls import GREEDY, PROMPTS, SAMPLED, compare, left_padded, raises_at
from tests.support.grids import covering
from tests.support.models import tiny_model
from uag.products import kernel, placing
from uag.products.forms import IS_USED, pick_form

SIZE = 768

pytestmark = pytest.mark.skipif(not IS_USED, reason="no form was measured here")


@cache
def model(kind: str, seed: int = 0) -> Any:
    """Return a model with weight matrices that are large enough for fast products."""
    sizes = {"n_embd": SIZE} if kind == "gpt2" else {"hidden_size": SIZE, "intermediate_size": SIZE}
    return tiny_model(kind, 700, seed, **sizes)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Return the list of the numbers of rows of fast products."""
    rows: list[int] = []

    def noting(num_rows: int) -> Any:
        rows.append(num_rows)
        return pick_form(num_rows)

    monkeypatch.setattr(placing, "pick_form", noting)
    yield rows
    for kind in ("gpt2", "llama"):
        assert not any("forward" in vars(layer) for layer in model(kind).modules())


@covering("kind, num_rows, options", ("gpt2", "llama"), (1, 3), (GREEDY, SAMPLED), strength=1)
def test_output_and_generator_are_those_of_plain_generate(
    kind: str, num_rows: int, options: dict[str, Any], taken: list[int]
) -> None:
    target, inputs = model(kind), left_padded(PROMPTS[:num_rows])
    assert compare(target, inputs | options).num_accepted_tokens
    assert max(taken) > num_rows


def test_the_draft_and_calls_without_one_take_it_too(taken: list[int]) -> None:
    target, draft, given = model("llama"), model("llama", seed=1), left_padded(PROMPTS[:1]) | GREEDY
    compare(target, given, uag.Assistant(None))
    num_plain = len(taken)
    assert num_plain
    assert compare(target, given, uag.Assistant(draft, num_candidate_tokens=3)).num_draft_forwards
    assert len(taken) > 2 * num_plain
    assert not any("forward" in vars(layer) for layer in draft.modules())


@pytest.mark.skipif(not kernel.LEVEL, reason="no kernel was built")
@pytest.mark.parametrize("num_rows", [1, 9])
def test_in_bfloat16_only_the_draft_of_few_rows_takes_it(num_rows: int, taken: list[int]) -> None:
    """The target's rounding decides near ties; the draft's cannot change the output."""
    target, draft = (copy.deepcopy(model("llama", seed=seed)).bfloat16() for seed in (0, 1))
    given = left_padded((PROMPTS * num_rows)[:num_rows]) | GREEDY
    uag.Assistant(None).generate(target, **given)
    assert not taken
    assistant = uag.Assistant(draft, num_candidate_tokens=3)
    assistant.generate(target, **given)
    assert assistant.stats.num_draft_forwards
    assert bool(taken) == (num_rows == 1)
    assert not any("forward" in vars(layer) for one in (target, draft) for layer in one.modules())


def test_it_can_be_left_out(taken: list[int]) -> None:
    target, given = model("llama"), left_padded(PROMPTS[:1]) | GREEDY
    compare(target, given, uag.Assistant(model("llama", seed=1), num_candidate_tokens=3, fast_products=False))
    compare(target, given, uag.Assistant(None, fast_products=False))
    assert not taken


def test_an_error_in_the_middle_of_a_call_leaves_the_models_alone(taken: list[int]) -> None:
    target, inputs = model("llama"), left_padded(PROMPTS[:1])
    assistant = uag.Assistant(model("llama", seed=1), num_candidate_tokens=3)
    with pytest.raises(ValueError, match="the user's own error"):
        assistant.generate(target, **inputs, **GREEDY, logits_processor=[raises_at(10)])
    assert len(taken) > 20
