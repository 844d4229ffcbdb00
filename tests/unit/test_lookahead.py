"""How far to draft: guesses, pauses and probes, and rates on synthetic data. Seconds are made up; no clock runs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.adapters.strategies import SETTINGS
from uag.lookahead import lookahead as module
from uag.lookahead import pauses
from uag.lookahead.calibration import Calibration
from uag.lookahead.costs import MAX_CANDIDATES, Costs, DraftCost
from uag.lookahead.lookahead import Lookahead
from uag.lookahead.rounds import Round
from uag.proposal import Proposal

Cost = Callable[[int], float]
"""Tokens in a target pass -> seconds."""


def proposals(*confidences: float) -> list[Proposal]:
    return [Proposal(0, confidence) for confidence in confidences]


def flat(num_tokens: int) -> float:
    return 1.0 + 0.01 * (num_tokens - 1)


def steep(num_tokens: int) -> float:
    return 1.0 + 0.3 * (num_tokens - 1)


class World:
    """A pair as the lookahead sees it, with seconds and acceptance that are known.

    Args:
        acceptance: chance of each candidate, given those before it; also the draft's confidence.
        draft_s: seconds of drafting one candidate.
        target_s: seconds of a target pass.
    """

    def __init__(self, acceptance: float, draft_s: float, target_s: Cost, seed: int = 0) -> None:
        self.acceptance = acceptance
        self.draft_s = draft_s
        self.target_s = target_s
        self.random = random.Random(seed)

    def run(self, lookahead: Lookahead, num_rounds: int, draft_prefill_s: float = 0.0) -> tuple[list[int], float]:
        """Decode for some rounds; returns the candidates of each and output tokens per second over all."""
        lengths: list[int] = []
        num_output, seconds = 0, 0.0
        for _ in range(num_rounds):
            limit = lookahead.plan()
            drafted: list[Proposal] = []
            is_last = False
            while len(drafted) < limit:
                drafted.append(Proposal(0, self.acceptance))
                if is_last:
                    break
                is_last = not lookahead.go_on(0, drafted)
            num_accepted = 0
            while num_accepted < len(drafted) and self.random.random() < self.acceptance:
                num_accepted += 1
            prefill_s = draft_prefill_s if drafted and not any(lengths) else 0.0
            draft_s, target_s = self.draft_s * len(drafted), self.target_s(len(drafted) + 1)
            lookahead.learn_round(Round(len(drafted), draft_s, target_s, [(drafted, num_accepted)], prefill_s))
            lengths.append(len(drafted))
            num_output += 1 + num_accepted
            seconds += draft_s + target_s + prefill_s
        return lengths, num_output / seconds

    def rate(self, num_candidates: int) -> float:
        """Expected output tokens per second with a fixed number of candidates."""
        expected = sum(self.acceptance**size for size in range(num_candidates + 1))
        return expected / (num_candidates * self.draft_s + self.target_s(num_candidates + 1))

    def best_rate(self) -> float:
        return max(self.rate(size) for size in range(MAX_CANDIDATES + 1))


# Rates --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("acceptance", [0.3, 0.6, 0.95])
@pytest.mark.parametrize(("draft_s", "target_s"), [(0.02, flat), (0.1, flat), (0.02, steep), (0.3, steep)])
def test_the_length_found_is_near_the_best_one(acceptance: float, draft_s: float, target_s: Cost) -> None:
    world, lookahead = World(acceptance, draft_s, target_s), Lookahead()
    world.run(lookahead, 100)
    lengths, _ = world.run(lookahead, 300)
    rate = sum(map(world.rate, lengths)) / len(lengths)  # expected, without the luck of the draw
    assert rate >= 0.93 * world.best_rate()


def test_a_small_gain_that_rests_on_one_slow_pass_is_found_out() -> None:
    """The first plain pass took more than twice as long as all others."""
    world = World(0.5, 0.25, steep)
    assert world.best_rate() == world.rate(0)
    lookahead = Lookahead()
    first = lookahead.plan()
    lookahead.learn_round(Round(first, 0.25 * first, steep(first + 1), [(proposals(*[0.5] * first), 1)]))
    assert lookahead.plan() == 0
    lookahead.learn_round(Round(0, 0.0, 2.4, [([], 0)]))
    lengths, _ = world.run(lookahead, 300)
    assert sum(size > 0 for size in lengths[50:]) <= 12


def test_a_large_gain_is_taken_all_the_time() -> None:
    lookahead = Lookahead()
    lengths, _ = World(0.9, 0.05, flat).run(lookahead, 300)
    assert lengths[1:].count(0) == 1


@pytest.mark.parametrize("acceptance", [0.05, 0.3, 0.5])
def test_a_draft_that_does_not_pay_costs_next_to_nothing(acceptance: float) -> None:
    world, lookahead = World(acceptance, 1.5, steep), Lookahead()
    lengths, _ = world.run(lookahead, 3000)
    assert world.best_rate() == world.rate(0) == 1.0
    assert 0 < sum(size > 0 for size in lengths) <= 12
    assert sum(map(world.rate, lengths)) / len(lengths) > 0.99


def test_pauses_grow_between_probes_up_to_a_bound() -> None:
    lookahead = Lookahead()
    lengths, _ = World(0.1, 1.5, steep).run(lookahead, 6 * pauses.LONGEST_PAUSE)
    probes = [number for number, size in enumerate(lengths) if size]
    gaps = [later - earlier for earlier, later in pairwise(probes)]
    assert gaps == sorted(gaps)
    assert gaps[0] >= pauses.FIRST_PAUSE
    assert pauses.LONGEST_PAUSE <= gaps[-1] <= pauses.LONGEST_PAUSE + 2
    assert all(later <= 2 * earlier + 4 for earlier, later in pairwise(gaps))


def test_a_probe_finds_out_that_the_draft_pays_by_now() -> None:
    lookahead = Lookahead()
    lengths, _ = World(0.1, 0.2, flat).run(lookahead, 200)
    assert lengths[-20:] == [0] * 20
    lengths, _ = World(0.95, 0.01, flat).run(lookahead, 400)
    assert min(lengths[-50:]) > 3
    # and the pauses start small again
    assert not any(pause.length for pause in lookahead._pauses.values())


def test_what_was_learnt_is_used_by_the_next_call() -> None:
    lookahead = Lookahead()
    assert not lookahead.drafts_first()
    World(0.9, 0.02, flat).run(lookahead, 50)
    lookahead.begin(1, "greedy", 10, 100, 0.1)
    assert lookahead.drafts_first()
    assert lookahead.plan() == MAX_CANDIDATES
    lookahead.begin(2, "greedy", 10, 100, 0.1)  # costs of another batch size are not known
    assert not lookahead.drafts_first()
    assert lookahead.plan() == module._FIRST_GUESS


# Options ------------------------------------------------------------------------------------------------------------


def test_a_fixed_length_is_kept_whatever_it_costs() -> None:
    lookahead = Lookahead(fixed=7)
    lookahead.begin(1, "greedy", 10**6, 1, 2.0)
    assert lookahead.drafts_first()
    lengths, _ = World(0.01, 9.0, steep).run(lookahead, 40)
    assert lengths == [7] * 40


def test_a_fixed_length_may_end_at_low_confidence() -> None:
    lookahead = Lookahead(fixed=7, min_confidence=0.5)
    assert lookahead.plan() == 7
    assert lookahead.go_on(0, proposals(0.8))
    assert lookahead.go_on(1, proposals(0.9))
    assert not lookahead.go_on(0, proposals(0.8, 0.6))
    assert lookahead.go_on(1, proposals(0.9, 0.6))
    lookahead.plan()  # a new round counts anew
    assert lookahead.go_on(0, proposals(0.8))


def test_low_confidence_ends_an_adaptive_round_too() -> None:
    lookahead = Lookahead(min_confidence=0.5)
    World(0.9, 0.01, flat).run(lookahead, 100)
    assert lookahead.plan() == MAX_CANDIDATES
    assert lookahead.go_on(0, proposals(0.9))
    assert not lookahead.go_on(0, proposals(0.9, 0.05))


def test_an_uncertain_candidate_is_where_an_adaptive_round_ends() -> None:
    lookahead = Lookahead()
    world = World(0.9, 0.1, flat)
    world.run(lookahead, 100)
    lookahead.plan()
    assert lookahead.go_on(0, proposals(0.9))
    assert not lookahead.go_on(0, proposals(0.9, 0.02))


# Before anything is known -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size_ratio", "guess"),
    [(0.0, module._FIRST_GUESS), (0.19, module._FIRST_GUESS), (0.2, module._SHORT_GUESS), (0.69, module._SHORT_GUESS)],
)
def test_the_first_guess_follows_the_sizes(size_ratio: float, guess: int) -> None:
    lookahead = Lookahead()
    lookahead.begin(1, "greedy", 10, 100, size_ratio)
    assert lookahead.plan() == guess


@pytest.mark.parametrize("size_ratio", [0.7, 1.0, 5.0])
def test_a_draft_about_as_heavy_as_the_target_never_runs(size_ratio: float) -> None:
    lookahead = Lookahead()
    lookahead.begin(1, "greedy", 10, 100, size_ratio)
    lengths, _ = World(0.9, 0.01, flat).run(lookahead, 3 * pauses.LONGEST_PAUSE)
    assert not any(lengths)


def test_after_the_first_guess_a_plain_pass_is_measured() -> None:
    lookahead = Lookahead()
    lengths, _ = World(0.9, 0.02, flat).run(lookahead, 4)
    assert lengths[0] == module._FIRST_GUESS
    assert lengths[1] == 0
    assert min(lengths[2:]) > 3


def test_a_prompt_that_costs_more_than_it_can_win_is_never_read() -> None:
    lookahead = Lookahead()
    lookahead.begin(1, "greedy", num_prompt_tokens=100_000, num_new_tokens=8, size_ratio=0.1)
    lookahead.learn_prefill(100.0)
    lookahead.learn_round(Round(0, 0.0, 1.0, [([], 0)]))
    lengths, _ = World(0.9, 0.01, flat).run(lookahead, 2000)
    assert not any(lengths)


def test_the_same_prompt_is_read_where_much_is_to_be_written() -> None:
    lookahead = Lookahead()
    lookahead.begin(1, "greedy", num_prompt_tokens=100_000, num_new_tokens=200, size_ratio=0.1)
    lookahead.learn_prefill(100.0)
    lookahead.learn_round(Round(0, 0.0, 1.0, [([], 0)]))
    assert lookahead.plan() == module._FIRST_GUESS


def test_a_long_prompt_is_not_read_for_a_mere_probe() -> None:
    lookahead = Lookahead()
    world = World(0.05, 1.0, steep)
    world.run(lookahead, 40, draft_prefill_s=5.0)  # it does not pay
    lookahead.begin(1, "greedy", num_prompt_tokens=5_000, num_new_tokens=100, size_ratio=0.1)
    lookahead._now.draft_token_s = 0.01
    lengths, _ = world.run(lookahead, 1500)
    assert not any(lengths)


# Costs and calibration ----------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("shape", [lambda c: c, lambda c: c * c, lambda c: 0.5, lambda c: 1.0 - c])
def test_calibration_learns_what_a_confidence_is_worth(shape: Callable[[float], float]) -> None:
    draw, calibration = random.Random(1), Calibration()
    confidences = [draw.random() for _ in range(20_000)]
    for confidence in confidences:
        calibration.learn(confidence, draw.random() < shape(confidence))
    for cell in range(10):  # counts fade, so that a hundred candidates decide
        middle = (cell + 0.5) / 10
        assert calibration.rate(middle) == pytest.approx(shape(middle), abs=0.17)
    assert calibration.mean == pytest.approx(sum(map(shape, confidences)) / len(confidences), abs=0.1)


def test_calibration_starts_with_the_drafts_own_confidence_and_follows_the_text() -> None:
    calibration = Calibration()
    assert calibration.rate(0.35) == 0.35
    assert calibration.mean == pytest.approx(0.7)
    for _ in range(500):
        calibration.learn(1.0, True)
    assert calibration.rate(1.0) == pytest.approx(1.0)
    for _ in range(500):
        calibration.learn(1.0, False)
    assert calibration.rate(1.0) < 0.1


def test_candidates_behind_the_first_rejected_one_teach_nothing() -> None:
    lookahead = Lookahead()
    lookahead.learn_round(Round(4, 0.1, 1.0, [(proposals(0.95, 0.75, 0.55, 0.35), 1)]))
    seen: Sequence[float] = lookahead._calibration.seen
    assert [cell for cell in range(10) if seen[cell]] == [7, 9]
    assert lookahead._calibration.accepted[9] == 1.0
    assert lookahead._calibration.accepted[7] == 0.0


# Free candidates ----------------------------------------------------------------------------------------------------


def test_of_free_candidates_as_many_are_taken_as_pay() -> None:
    lookahead = Lookahead()
    assert lookahead.best_common([[0.9]]) == (0, 0.0)  # nothing was measured yet
    World(0.9, 0.02, steep).run(lookahead, 200)
    size, rate = lookahead.best_common([[0.9, 0.9, 0.05, 0.05]])
    assert size == 2
    assert rate == pytest.approx((1 + 0.9 + 0.81) / lookahead._now.target(3))
    assert lookahead.best_common([[0.01, 0.01]])[0] == 0
    assert lookahead.best_common([[]])[0] == 0


def test_free_candidates_wait_until_plain_decoding_was_measured() -> None:
    lookahead = Lookahead()
    lookahead._now.learn_target(4, 1.0)
    assert lookahead.best_common([[0.99] * 3]) == (0, 0.0)
    lookahead._now.learn_target(1, 0.9)
    assert lookahead.best_common([[0.99] * 3])[0] == 3


def test_a_pass_is_as_wide_as_its_longest_row_so_rows_choose_together() -> None:
    lookahead = Lookahead()
    lookahead.begin(4, "greedy")
    for size in range(1, 6):
        lookahead._now.learn_target(size, steep(size))
    one, all_four = [[0.95] * 4, [], [], []], [[0.95] * 4] * 4
    assert lookahead.best_common(one)[0] == 0
    size, rate = lookahead.best_common(all_four)
    assert size == 4
    assert rate == pytest.approx(sum(0.95**n for n in range(5)) / steep(5))
    lookahead.begin(1, "greedy")
    for size in range(1, 6):
        lookahead._now.learn_target(size, steep(size))
    assert lookahead.best_common([[0.95] * 4])[0] == 4


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


@pytest.mark.parametrize(("num_rows", "pays"), [(1, True), (2, True), (8, False), (64, False)])
def test_the_more_rows_the_more_a_draft_must_promise(num_rows: int, pays: bool) -> None:
    """Rows end apart: the mean rate of all is not the rate of the last."""
    lookahead = Lookahead()
    lookahead.begin(num_rows, "greedy", 10, 100, 0.1)
    lookahead._now.draft.learn(1, 0.47)
    for size in range(11, 0, -1):  # plain decoding last: it need not be measured again
        lookahead._now.learn_target(size, flat(size))
    gain = lookahead.model_rate() * lookahead._now.target(1)
    assert 1.12 < gain < 1.2
    assert (lookahead.plan(num_rows) > 0) == pays


# Pauses over several calls --------------------------------------------------------------------------------------------


def test_short_calls_probe_as_often_as_one_long_call() -> None:
    """A pause goes on in the next call, and grows only by probes that found that nothing pays."""
    lookahead = Lookahead()
    world = World(0.1, 0.5, steep)
    world.run(lookahead, 30)
    lengths = []
    for _ in range(100):
        lookahead.begin(1, "greedy", 10, 100, 0.1)
        lengths += world.run(lookahead, 30)[0]
    probes = [number for number, size in enumerate(lengths) if size]
    assert 4 <= len(probes) <= 10
    world = World(0.95, 0.01, flat)  # the text becomes easy
    for _ in range(60):
        lookahead.begin(1, "greedy", 10, 100, 0.1)
        lengths = world.run(lookahead, 30)[0]
    assert min(lengths) > 3


def test_an_unlucky_start_with_one_prompt_is_not_held_against_the_next_ones() -> None:
    lookahead = Lookahead()
    lookahead.begin(1, "greedy", num_prompt_tokens=100_000, num_new_tokens=8, size_ratio=0.1)
    lookahead.learn_prefill(100.0)
    lookahead.learn_round(Round(0, 0.0, 1.0, [([], 0)]))
    assert not any(World(0.9, 0.01, flat).run(lookahead, 50)[0])  # too long to be read
    lookahead.begin(1, "greedy", num_prompt_tokens=10, num_new_tokens=100, size_ratio=0.1)
    assert min(World(0.9, 0.01, flat).run(lookahead, 50)[0][5:]) > 3
