"""What passes and drafting are taken to cost, from what was measured."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.world import World, flat, proposals
from tests.unit.adapters.strategies import SETTINGS
from uag.lookahead import Lookahead, Round
from uag.lookahead.costs import Costs, DraftCost


def test_costs_between_measured_lengths_lie_on_a_line() -> None:
    costs = Costs(target_s={1: 1.0, 5: 2.0})
    assert [costs.target(size) for size in (1, 3, 5)] == [1.0, 1.5, 2.0]
    assert costs.target(10) == pytest.approx(2.0 * 1.1)
    assert Costs().target(3) == 1.0
    assert Costs(target_s={4: 2.0}).target(1) == 2.0


@SETTINGS
@given(seconds=st.dictionaries(st.integers(1, 33), st.floats(0.01, 10.0), min_size=1, max_size=8))
def test_a_pass_over_more_tokens_is_never_taken_to_be_cheaper(seconds: dict[int, float]) -> None:
    costs = Costs(target_s=seconds)
    known = [costs.target(size) for size in range(1, 40)]
    assert all(later >= earlier * (1 - 1e-9) for earlier, later in pairwise(known))
    assert all(costs.target(size) <= measured for size, measured in seconds.items())


@pytest.mark.parametrize(("start", "slope"), [(0.0, 2.0), (3.0, 1.0), (5.0, 0.0)])
def test_drafting_costs_a_start_and_so_much_for_each_candidate(start: float, slope: float) -> None:
    cost = DraftCost()
    assert DraftCost()(4) == 0.0
    cost.learn(5, start + 5 * slope)
    assert cost.is_known
    assert cost(10) == pytest.approx(2 * (start + 5 * slope))  # one length says nothing of a start
    draw = random.Random(3)
    for _ in range(60):
        length = draw.randint(1, 9)
        cost.learn(length, (start + slope * length) * draw.uniform(0.95, 1.05))
    for length in (1, 4, 9, 12):
        assert cost(length) == pytest.approx(start + slope * length, rel=0.12)


def test_the_last_candidate_for_nothing_is_no_negative_start() -> None:
    cost = DraftCost()
    for length in (1, 2, 3, 4, 5) * 10:
        cost.learn(length, 1.0 * (length - 1) + 0.1)
    assert cost(0) == 0.0
    assert cost(5) == pytest.approx(4.1, rel=0.1)


def test_a_copy_goes_on_by_itself() -> None:
    cost = DraftCost()
    cost.learn(2, 1.0)
    other = replace(cost)
    other.learn(2, 1.5)
    assert cost(2) == pytest.approx(1.0)
    assert other(2) > 1.1


def test_one_slow_pass_moves_an_estimate_little() -> None:
    lookahead = Lookahead()
    world = World(0.9, 0.02, flat)
    world.run(lookahead, 100)
    assert lookahead._now.draft(5) == pytest.approx(0.1)
    before = lookahead._now.target(6)
    lookahead.learn_round(Round(5, 5 * 100.0, 100.0, [(proposals(*[0.9] * 5), 5)]))
    assert 0.1 < lookahead._now.draft(5) < 0.14  # the rounds before were longer: few say what five cost
    assert before < lookahead._now.target(6) < 1.2 * before


def test_the_first_pass_over_the_prompt_says_nothing_about_blocks() -> None:
    lookahead = Lookahead()
    lookahead.learn_round(Round(5, 0.1, 50.0, [(proposals(*[0.9] * 5), 5)], is_first=True))
    assert not lookahead._now.target_s


def test_rows_that_are_left_have_costs_of_their_own() -> None:
    lookahead = Lookahead()
    lookahead.begin(8, "greedy")
    for _ in range(3):
        assert lookahead.plan(8) >= 0
        lookahead.learn_round(Round(0, 0.0, 2.0, [([], 0)] * 8))
    assert lookahead._now.target(1) == pytest.approx(2.0)
    lookahead._now.draft.learn(1, 0.25)
    lookahead.plan(7)  # about as many
    assert lookahead._now.target(1) == pytest.approx(2.0)
    lookahead.plan(1)
    assert not lookahead._now.target_s
    assert lookahead._now.draft(1) == pytest.approx(0.25)  # draft passes run all rows of the batch
    lookahead.learn_round(Round(0, 0.0, 0.5, [([], 0)]))
    lookahead.plan(8)
    assert lookahead._now.target(1) == pytest.approx(2.0)
    lookahead.begin(8, "greedy")
    assert lookahead._now.target(1) == pytest.approx(2.0)
