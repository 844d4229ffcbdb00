"""Custom drafters: the output is the target's for any candidates."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LogitsProcessorList

import uag
from tests.support.calls import PROMPTS, left_padded, pair
from uag.drafting import Ask, Drafter
from uag.errors import OptionError
from uag.proposal import Proposal

GREEDY: dict[str, Any] = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0}


class Careless(Drafter):
    """Proposes a fixed number of candidates, ignoring the request."""

    strategy = "careless"

    def __init__(self, size: int) -> None:
        self.size = size
        self.asks: list[Ask] = []

    def start(self, prompts: Sequence[Sequence[int]], source_ids: Any = None) -> None:
        self.num_rows = len(prompts)

    def propose(self, ask: Ask) -> list[list[Proposal]]:
        self.asks.append(ask)
        return [[Proposal(i, 0.9) for i in range(self.size)] for _ in range(self.num_rows)]

    def accept(self, row: int, num_accepted: int, output_ids: Sequence[int]) -> None:
        pass

    def release(self) -> None:
        pass


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("size", [0, 50])
def test_too_many_candidates_are_cut_and_none_are_plain_decoding(size: int, num_rows: int) -> None:
    target = pair()[0]
    inputs = left_padded(PROMPTS[:num_rows])
    drafter = Careless(size)
    assistant = uag.Assistant(None, drafter=drafter, num_candidate_tokens=3)
    expected = target.generate(**inputs, **GREEDY)
    assert assistant.generate(target, **inputs, **GREEDY).tolist() == expected.tolist()
    assert assistant.stats.num_candidate_tokens <= 3 * num_rows * assistant.stats.num_rounds
    assert bool(size) == bool(assistant.stats.num_candidate_tokens)


def test_a_pause_is_one_for_those_who_do_not_look_at_it_too() -> None:
    """Candidates are never right, so drafting pauses; candidates proposed then are not verified."""
    target = pair()[0]
    inputs = left_padded(PROMPTS[:1])
    drafter = Careless(4)
    assistant = uag.Assistant(None, drafter=drafter)
    num_paused = 0
    for _ in range(4):
        drafter.asks.clear()
        assistant.generate(target, **inputs, **GREEDY)
        assert assistant.stats.num_candidate_tokens <= sum(min(4, ask.limit) for ask in drafter.asks)
        num_paused += sum(not ask.limit for ask in drafter.asks)
    assert num_paused > 20


class Garbage(Careless):
    """Returns the value it was created with."""

    strategy = "garbage"

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__(0)
        self.make = make

    def propose(self, ask: Ask) -> Any:
        return self.make()


@pytest.mark.parametrize(
    ("make", "returned"),
    [
        (lambda: None, "None"),
        (lambda: ([Proposal(1, 0.5)] for _ in range(3)), "<generator"),
        (lambda: torch.zeros(3, 2, dtype=torch.long), r"tensor\("),
        (lambda: [[]], r"\[\[\]\] for 3 rows"),
    ],
)
def test_garbage_is_an_error_that_names_the_drafter(make: Callable[[], Any], returned: str) -> None:
    assistant = uag.Assistant(None, drafter=Garbage(make), num_candidate_tokens=2)
    with pytest.raises(
        OptionError, match=rf"(?s)Garbage\.propose returned {returned}.* Return one list of .* each row, empty"
    ):
        assistant.generate(pair()[0], **left_padded(PROMPTS), **GREEDY)


@pytest.mark.parametrize("wrong", [-1, 649, 2**70])
@pytest.mark.parametrize("is_free", [False, True])
def test_ids_that_the_target_lacks_end_a_rows_candidates(wrong: int, is_free: bool) -> None:
    target = pair()[0]
    assert target.get_output_embeddings().weight.shape[0] == 649
    offered = [Proposal(np.int64(3), np.float32(0.5), is_free), Proposal(wrong, 0.5), Proposal(4, 0.5)]  # type: ignore[arg-type]
    assistant = uag.Assistant(None, drafter=Garbage(lambda: [list(offered)]), num_candidate_tokens=4)
    inputs = left_padded(PROMPTS[:1])
    assert assistant.generate(target, **inputs, **GREEDY).tolist() == target.generate(**inputs, **GREEDY).tolist()
    assert 0 < assistant.stats.num_candidate_tokens <= assistant.stats.num_rounds
    reason = f"'garbage' proposed the id {wrong}, which the target's head lacks; such candidates were dropped"
    assert assistant.stats.fallbacks == ([] if is_free else [reason])


class Draws(Careless):
    """Draws random numbers in every method."""

    def start(self, prompts: Sequence[Sequence[int]], source_ids: Any = None) -> None:
        super().start(prompts)
        torch.rand(3)

    def propose(self, ask: Ask) -> list[list[Proposal]]:
        torch.rand(3)
        return super().propose(ask)

    def accept(self, row: int, num_accepted: int, output_ids: Sequence[int]) -> None:
        torch.rand(3)

    def release(self) -> None:
        torch.rand(3)


@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("num_rows", [1, 3])
def test_a_source_that_draws_random_numbers_leaves_the_callers_generator_alone(num_rows: int, do_sample: bool) -> None:
    target, inputs, options = pair()[0], left_padded(PROMPTS[:num_rows]), GREEDY | {"do_sample": do_sample}
    drawn: list[float] = []

    def draws(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        drawn.append(torch.rand(1).item())  # the caller's own code draws as in plain decoding
        return scores

    def run(generate: Callable[..., Any]) -> tuple[Any, ...]:
        drawn.clear()
        torch.manual_seed(3)
        ids = generate(**inputs, **options, logits_processor=LogitsProcessorList([draws])).tolist()
        return ids, list(drawn), torch.get_rng_state().tolist()

    assistant = uag.Assistant(None, drafter=Draws(4), num_candidate_tokens=3)
    assert run(lambda **given: assistant.generate(target, **given)) == run(target.generate)
    assert assistant.stats.num_candidate_tokens
