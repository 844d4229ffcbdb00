"""Forced tokens of a constraint: free candidates, and the constraint's function is called as in plain decoding."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from transformers.generation.logits_process import NoRepeatNGramLogitsProcessor, PrefixConstrainedLogitsProcessor

import uag
from tests.support.callers import Looks, Watches
from tests.support.calls import GREEDY, MODES, PROMPTS, SAMPLED, assistant_of, ids_of, left_padded, pair, seeded
from uag.hf.models import head_size

WIDTH = len(PROMPTS[0])
NUM_NEW = 20
MIDDLE = [31, 32, 33, 34, 35, 36]
EVERYTHING = list(range(5, 600))


class Template:
    """Forces tokens at some output steps, and keeps a record of its calls."""

    def __init__(self, forced: dict[int, int], then: Callable[[int, list[int]], Any] = lambda *_: None) -> None:
        self.forced, self.then = forced, then
        self.calls: list[tuple[int, list[int]]] = []

    def __call__(self, row: int, ids: torch.Tensor) -> Any:
        self.calls.append((row, ids.tolist()))
        own = self.then(len(self.calls), ids.tolist())
        step = len(ids) - WIDTH
        return own if own is not None else [self.forced[step]] if step in self.forced else EVERYTHING


def steps(*starts: int) -> dict[int, int]:
    return {start + index: token_id for start in starts for index, token_id in enumerate(MIDDLE)}


def both(
    make: Callable[[], Template],
    options: dict[str, Any],
    assistant: uag.Assistant | None = None,
    prompts: Sequence[Sequence[int]] = PROMPTS[:1],
    others: Callable[[], dict[str, Any]] = dict,
) -> tuple[uag.Stats, Template]:
    """Run a call plainly and assisted, and compare ids, generators, errors, and the calls of the function."""
    assistant = assistant or uag.Assistant.from_prompt_lookup(num_candidate_tokens=5)
    results = []
    for generate in (pair()[0].generate, lambda **given: assistant.generate(pair()[0], **given)):
        template, ids = make(), list[Any]()
        try:
            given = left_padded(prompts) | options | {"max_new_tokens": NUM_NEW} | others()
            ids = ids_of(seeded(5, generate, **given, prefix_allowed_tokens_fn=template)).tolist()
        except ArithmeticError as error:
            ids = [str(error)]
        results.append((ids, torch.get_rng_state().tolist(), template.calls))
    assert results[0] == results[1]
    return assistant.stats, template


@MODES
def test_forced_tokens_save_passes_and_no_call_of_the_function_differs(options: dict[str, Any]) -> None:
    stats, _ = both(lambda: Template(steps(2, 10)), options)
    # Candidates are at most 5 at once, and the target adds a token of its own.
    assert stats.accepted_by_source["constraint"] == 2 * len(MIDDLE) - 2
    assert stats.candidates_by_source["constraint"] == 2 * len(MIDDLE) - 2
    assert stats.num_target_forwards <= NUM_NEW - 10


@pytest.mark.parametrize("length", [1, 3, None])
def test_each_number_of_candidates_and_a_draft_beside_it(length: int | None) -> None:
    assistant = assistant_of(length=length)
    for options in (GREEDY, SAMPLED):
        for _ in range(3):  # with a number that depends on measured times, the first calls measure
            stats, _ = both(lambda: Template(steps(2, 10)), options, assistant)
    assert stats.accepted_by_source["constraint"] > 0


def test_a_call_that_ends_within_forced_tokens_asks_no_further() -> None:
    for start in range(10, 20):
        both(lambda start=start: Template(steps(start)), GREEDY)  # type: ignore[misc]


def test_a_forced_token_may_end_the_text() -> None:
    target = pair(eos=True)[0]
    (eos_id, *_) = target.generation_config.eos_token_id
    template = Template({**steps(2), 8: eos_id, 9: 40, 10: 41})
    given = left_padded(PROMPTS[:1]) | GREEDY
    expected = target.generate(**given, prefix_allowed_tokens_fn=template)
    plain, template.calls = template.calls, []
    assistant = uag.Assistant.from_prompt_lookup(num_candidate_tokens=9)
    assert assistant.generate(target, **given, prefix_allowed_tokens_fn=template).tolist() == expected.tolist()
    assert template.calls == plain


@pytest.mark.parametrize(
    ("kind", "options"),
    [(kind, options) for kind in ("counts", "draws", "tensor", "twice") for options in (GREEDY, SAMPLED)]
    + [("torch", GREEDY)],  # sampled: see the next test
)
def test_functions_of_every_kind(kind: str, options: dict[str, Any]) -> None:
    """They may count their calls, draw random numbers, and return any sequence of integers."""

    def then(number: int, ids: list[int]) -> Any:
        step = len(ids) - WIDTH
        if kind == "counts":
            return [MIDDLE[number % 6]] if number % 5 else EVERYTHING
        if kind == "draws":
            return [5 + int(torch.rand(()) * 500)]
        if kind == "torch":  # draws only later, when forced tokens have been asked for
            return [5 + int(torch.rand(()) * 500)] if step > 5 else None
        if kind == "tensor":
            return torch.tensor([MIDDLE[step % 6]]) if step % 5 else torch.tensor(EVERYTHING)
        return [40, 40] if step % 2 else None

    stats, _ = both(lambda: Template(steps(2, 10), then), options)
    if kind in ("counts", "tensor"):
        assert stats.accepted_by_source["constraint"] > 3


def test_a_function_that_draws_from_the_generator_of_the_tokens_is_not_asked_ahead() -> None:
    def draws(number: int, ids: list[int]) -> Any:
        torch.rand(2)

    stats, _ = both(lambda: Template(steps(2, 10), draws), SAMPLED)
    assert "constraint" not in stats.candidates_by_source


def test_an_error_is_raised_where_plain_decoding_raises_it() -> None:
    def fails(number: int, ids: list[int]) -> None:
        if len(ids) - WIDTH == 5:
            raise ArithmeticError("no way on")

    class Streamed:
        def __init__(self) -> None:
            self.put_ids: list[list[int]] = []

        def put(self, value: torch.Tensor) -> None:
            self.put_ids.append(value.tolist())

        def end(self) -> None:
            pass

    streams: list[Streamed] = []

    def others() -> dict[str, Any]:
        streams.append(Streamed())
        return {"streamer": streams[-1]}

    both(lambda: Template(steps(2), fails), GREEDY, others=others)
    assert streams[0].put_ids == streams[1].put_ids
    assert len(streams[0].put_ids) == 6


@MODES
def test_a_forced_token_that_another_processor_excludes_is_rejected(options: dict[str, Any]) -> None:
    """The function is asked in vain once, and never ahead again."""
    template = Template(steps(2, 10))
    given = left_padded(PROMPTS[:1]) | options | {"prefix_allowed_tokens_fn": template, "max_new_tokens": NUM_NEW}
    given |= {"logits_processor": [NoRepeatNGramLogitsProcessor(1)]} if options is GREEDY else {}
    assistant = uag.Assistant.from_prompt_lookup(num_candidate_tokens=5)
    expected = seeded(5, pair()[0].generate, **given).tolist()
    num_plain = len(template.calls)
    assert seeded(5, assistant.generate, pair()[0], **given).tolist() == expected
    num_wrong = assistant.stats.candidates_by_source["constraint"] - assistant.stats.accepted_by_source["constraint"]
    assert (num_wrong > 0) == (options is GREEDY)
    assert len(template.calls) - 2 * num_plain <= 6


@pytest.mark.parametrize(
    ("others", "prompts"),
    [
        (lambda: {"logits_processor": [Looks()]}, PROMPTS[:1]),
        (lambda: {"stopping_criteria": [Watches()]}, PROMPTS[:1]),
        (dict, [PROMPTS[0], PROMPTS[0][::-1]]),
    ],
    ids=["processor", "criterion", "batch"],
)
def test_beside_others_nothing_is_asked_ahead(others: Callable[[], dict[str, Any]], prompts: list[list[int]]) -> None:
    stats, _ = both(lambda: Template(steps(2, 10)), GREEDY, others=others, prompts=prompts)
    assert "constraint" not in stats.candidates_by_source


def test_the_callers_processor_is_not_changed() -> None:
    template = Template(steps(2))
    processor = PrefixConstrainedLogitsProcessor(template, 1)
    given = left_padded(PROMPTS[:1]) | GREEDY | {"logits_processor": [processor]}
    assistant = uag.Assistant.from_prompt_lookup(num_candidate_tokens=5)
    expected = pair()[0].generate(**given).tolist()
    assert assistant.generate(pair()[0], **given).tolist() == expected
    assert assistant.stats.accepted_by_source["constraint"] > 3
    scores = processor(torch.tensor([PROMPTS[0]]), torch.zeros(1, head_size(pair()[0])))
    assert scores.isfinite().sum() == len(EVERYTHING)
    assert vars(processor)["_prefix_allowed_tokens_fn"] is template


def test_without_a_source_of_candidates_a_call_stays_plain() -> None:
    stats, _ = both(lambda: Template(steps(2)), GREEDY, uag.Assistant(None))
    assert stats.strategy == "plain"
    assert stats.num_candidate_tokens == 0
