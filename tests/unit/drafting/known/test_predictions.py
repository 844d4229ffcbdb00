"""Valid predictions, their acceptance, and the choice between sources."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from uag.drafting import Ask, PromptLookup
from uag.drafting.known.prediction import PredictionSource, read_predictions
from uag.drafting.ranked import FreeFirst
from uag.errors import OptionError
from uag.lookahead import Lookahead, Round
from uag.projection import Scoring


@pytest.mark.parametrize(
    ("value", "num_rows", "expected"),
    [
        (None, 2, [None, None]),
        ("", 1, [""]),
        ([], 1, [()]),
        ("a", 2, ["a", "a"]),
        ([3, 4], 2, [(3, 4), (3, 4)]),
        (torch.tensor([3, 4]), 1, [(3, 4)]),
        (np.array([3, 4]), 1, [(3, 4)]),
        (torch.tensor([[3, 4], [5, 6]]), 2, [(3, 4), (5, 6)]),
        (["a", None], 2, ["a", None]),
        (["a", [3]], 2, ["a", (3,)]),
        ([np.array([3, 4]), [torch.tensor(5)]], 2, [(3, 4), (5,)]),
        (["a", None], 4, ["a", "a", None, None]),
    ],
)
def test_predictions_for_each_row(value: Any, num_rows: int, expected: Any) -> None:
    assert read_predictions(value, num_rows) == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, r"prediction=3 \(int\) is not a prediction\. Pass text, target ids"),
        (b"bytes", r"prediction=b'bytes' \(bytes\) is not a prediction"),
        ({"type": "content"}, r"\(dict\) is not a prediction"),
        (torch.tensor([0.5]), r"prediction=0.5 \(float\) is not a prediction"),
        ([True, False], r"prediction=True \(bool\) is not a prediction"),
        ([["a", 3.5]], r"prediction=\['a', 3.5\] \(list\) is not a prediction"),
        ([["a", "b"]], r"prediction=\['a', 'b'\] \(list\) is not a prediction"),
        (lambda ids: "a", r"\(function\) is not a prediction"),
        (Future(), r"\(Future\) is not a prediction"),
        (["a", "b", "c"], r"prediction has 3 entries and the batch 2 rows\. Pass one entry per row"),
        (torch.zeros(3, 2, dtype=torch.long), r"prediction has 3 entries"),
    ],
)
def test_anything_else_is_refused(value: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        read_predictions(value, 2)


def lookahead() -> Lookahead:
    """A lookahead that has learned that a pass takes a second, and each additional token a hundredth."""
    found = Lookahead()
    for size in (0, 1, 8, 32, 64):
        found.learn_round(Round(size, 0.0, 1.0 + 0.01 * size, []))
    return found


def ask(budgets: list[int], known: Lookahead | None = None) -> Ask:
    return Ask(budgets, 0, known or lookahead(), lambda *_: Scoring(10), frozenset({9}))


def ids_of(source: PredictionSource | FreeFirst, budgets: list[int]) -> list[list[int]]:
    return [[p.target_id for p in line] for line in source.propose(ask(budgets))]


def source_of(*by_row: Any, prompts: list[list[int]]) -> PredictionSource:
    """A source that has started with predictions and a prompt for each row."""
    source = PredictionSource(list(by_row), len(by_row), 1000)
    source.start(prompts)
    return source


def test_what_is_followed_for_longer_is_offered_farther() -> None:
    source = source_of(tuple(range(10, 400)), prompts=[[1, 2]])
    lengths, done = [], 10
    for _ in range(4):
        (line,) = ids_of(source, [500])
        assert line == list(range(done, done + len(line)))
        lengths.append(len(line))
        source.accept(0, len(line), list(range(done, done + len(line) + 1)))
        done += len(line) + 1
    assert lengths == sorted(lengths)
    assert lengths[-1] > lengths[0] > 0
    assert ids_of(source, [3]) == [list(range(done, done + 3))]
    assert ids_of(source, [0]) == [[]]


def test_guesses_that_are_wrong_are_soon_not_made() -> None:
    source = source_of(tuple(range(100, 200)) * 3, prompts=[[1]])
    offered = []
    for number in range(100):  # the output contains each of its ids, but never two consecutive ones
        offered.append(len(ids_of(source, [500])[0]))
        source.accept(0, 0, [100 + number * 37 % 100])
    assert sum(offered[:10]) > 0 == sum(offered[80:])


def test_the_source_that_promises_most_goes_first() -> None:
    prediction = PredictionSource([20, 21, 22, 23, 24, 25, 26, 27], 1, 100)
    both = FreeFirst(None, [prediction, PromptLookup()])
    both.start([[20, 30, 31, 32, 33, 34, 35, 36]])
    both.accept(0, 0, [20])
    first = both.propose(ask([20]))[0]
    assert {p.source for p in first} == {"prediction"}
    assert all(p.is_free for p in first)
    both.accept(0, 0, [30])  # the target repeats its prompt
    for done in ((31,), (32,), (33,)):
        second = both.propose(ask([20]))[0]
        both.accept(0, 0, done)
    assert {p.source for p in second} == {"prompt"}
    assert [p.target_id for p in second][:1] == [33]


def test_prompt_lookup_with_ids_below_zero_proposes_what_follows_other_ids() -> None:
    """Some models use such ids for images."""
    lookup = PromptLookup()
    lookup.start([[-200, 5, 6, 7, 8, 9, 5, 6, 7]])
    assert [p.target_id for p in lookup.propose(ask([20]))[0]][:1] == [8]
    lookup.start([[5, 6, 7, -200, 9, 5, 6, 7]])
    assert replace(ask([20]), vocab_size=100_000).put_to(lookup) == [[]]  # no vocabulary has the id that follows


@pytest.mark.parametrize("kind", [list, tuple, torch.tensor])
def test_a_million_ids_take_little_more_memory_than_they_hold(kind: Any) -> None:
    ids = [0xFEFF, 0xD800, 150_000, *range(1_000_000)]
    value = kind(ids)
    tracemalloc.start()
    source = PredictionSource(value, 1, 1_000_001)
    source.start([[1]])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert ids_of(source, [2]) == [ids[:2]]
    assert peak < 64 * len(ids)  # a tensor's Python integers are more than half of it
