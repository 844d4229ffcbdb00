"""Custom drafters: the output is the target's for any candidates."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import uag
from tests.support.calls import GREEDY, PROMPTS, Looks, compare, left_padded, pair
from tests.support.grids import ROWS_AND_MODES, covering
from uag.drafting import Ask, Drafter, ModelDrafter
from uag.errors import OptionError
from uag.lookahead import Lookahead
from uag.projection import Scoring
from uag.proposal import Proposal


class Careless(Drafter):
    """Proposes a fixed number of candidates, ignoring the request; has only the methods of the documentation."""

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


@covering("size, num_rows", (0, 50), (1, 3), strength=1)
def test_too_many_candidates_are_cut_and_none_are_plain_decoding(size: int, num_rows: int) -> None:
    assistant = uag.Assistant(None, drafter=Careless(size), num_candidate_tokens=3)
    stats = compare(pair()[0], left_padded(PROMPTS[:num_rows]) | GREEDY, assistant)
    assert stats.num_candidate_tokens <= 3 * num_rows * stats.num_rounds
    assert stats.strategy == "custom"
    assert list(stats.candidates_by_source) == ["source"] * bool(size)
    assert bool(size) == bool(stats.num_candidate_tokens)


def test_a_row_is_asked_for_no_more_candidates_than_it_can_use() -> None:
    """One less than the tokens that are left, and none after its end."""
    target, given, drafter = pair()[0], left_padded(PROMPTS) | GREEDY | {"max_new_tokens": 4}, Careless(4)
    first_id = int(target.generate(**given)[0, given["input_ids"].shape[1]])
    given |= {"eos_token_id": first_id, "logits_processor": [Looks()]}
    compare(target, given, uag.Assistant(None, drafter=drafter, num_candidate_tokens=9))
    assert [list(ask.limits) for ask in drafter.asks] == [[3, 3, 3], [0, 2, 2], [0, 1, 1], [0, 0, 0]]


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


class Costly(Careless):
    has_free = False


@pytest.mark.parametrize("memory", [False, True])
def test_drafter_without_free_candidates_is_not_asked_while_drafting_pauses(memory: bool) -> None:
    drafter = Costly(4)
    assistant = uag.Assistant(None, drafter=drafter, memory=memory)
    num_rounds = 0
    for prompt in PROMPTS * 2:
        assistant.generate(pair()[0], **left_padded([prompt]), **GREEDY)
        num_rounds += assistant.stats.num_rounds
    assert 0 < len(drafter.asks) < num_rounds  # how many depends on the times of passes
    assert all(ask.limit for ask in drafter.asks)


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
    stats = compare(target, left_padded(PROMPTS[:1]) | GREEDY, assistant)
    assert 0 < stats.num_candidate_tokens <= stats.num_rounds
    reason = f"'garbage' proposed the id {wrong}, which the target's head lacks; such candidates were dropped"
    assert stats.fallbacks == ([] if is_free else [reason])


@pytest.mark.parametrize("kind", [np.int64, np.int32, torch.tensor])
def test_ids_of_other_types_are_compared_as_numbers(kind: Callable[[int], Any]) -> None:
    """`in` a range walks it for numbers that are no int."""
    target = pair()[0]
    inputs = left_padded(PROMPTS[:1])
    output = target.generate(**inputs, **GREEDY)[0, inputs["input_ids"].shape[1] :].tolist()
    seen: list[int] = []

    class Accepts(Garbage):
        def accept(self, row: int, num_accepted: int, output_ids: Sequence[int]) -> None:
            seen.extend(output_ids)

    drafter = Accepts(lambda: [[Proposal(kind(i), 0.9) for i in output[len(seen) : len(seen) + 3]]])
    ask = Ask([3], 3, Lookahead(3), lambda *_: Scoring(649), vocab_size=1 << 60)
    assert [[type(each.target_id) for each in row] for row in ask.put_to(drafter)] == [[int] * 3]
    stats = compare(target, inputs | GREEDY, uag.Assistant(None, drafter=drafter, num_candidate_tokens=3))
    assert stats.num_accepted_tokens == stats.num_candidate_tokens > 0


def test_a_custom_drafter_is_used_without_prompt_lookup() -> None:
    """It may be a `ModelDrafter`; prompt lookup is used beside a draft that is passed as a model."""
    target, _, draft, _ = pair()
    given = left_padded([PROMPTS[0] * 4]) | GREEDY
    alone = uag.Assistant(None, drafter=ModelDrafter(draft, None))
    assert "prompt" not in compare(target, given, alone).candidates_by_source


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


@ROWS_AND_MODES
def test_a_source_that_draws_random_numbers_leaves_the_callers_generator_alone(
    num_rows: int, options: dict[str, Any]
) -> None:
    def draws(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores + torch.rand(scores.shape)  # the caller's own code draws as in plain decoding

    given = left_padded(PROMPTS[:num_rows]) | options | {"logits_processor": [draws]}
    assistant = uag.Assistant(None, drafter=Draws(4), num_candidate_tokens=3)
    assert compare(pair()[0], given, assistant).num_candidate_tokens > 0
