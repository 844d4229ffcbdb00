"""How far to draft: first guesses, options, and lengths that come near the best rate there is."""

from __future__ import annotations

import pytest

from tests.support.world import Cost, World, flat, proposals, steep
from uag.lookahead import MAX_CANDIDATES, Lookahead, Round, pauses
from uag.lookahead import lookahead as module


@pytest.mark.parametrize("acceptance", [0.3, 0.6, 0.95])
@pytest.mark.parametrize(("draft_s", "target_s"), [(0.02, flat), (0.1, flat), (0.02, steep), (0.3, steep)])
def test_the_length_found_is_near_the_best_one(acceptance: float, draft_s: float, target_s: Cost) -> None:
    world, lookahead = World(acceptance, draft_s, target_s), Lookahead()
    world.run(lookahead, 100)
    lengths, _ = world.run(lookahead, 300)
    rate = sum(map(world.rate, lengths)) / len(lengths)  # expected, without the luck of the draw
    assert rate >= 0.93 * world.best_rate()


def test_a_large_gain_is_taken_all_the_time() -> None:
    lookahead = Lookahead()
    lengths, _ = World(0.9, 0.05, flat).run(lookahead, 300)
    assert lengths[1:].count(0) == 1


@pytest.mark.parametrize(("draft_s", "num_good"), [(0.05, 0), (0.2, 0), (0.5, 0), (0.5, 50)])
def test_a_draft_that_proposes_nothing_is_soon_asked_rarely(draft_s: float, num_good: int) -> None:
    lookahead = Lookahead()
    if num_good:
        World(0.8, draft_s, flat).run(lookahead, num_good)
    world = World(0.8, draft_s, flat, empty=1.0)
    asked = []
    for _ in range(20):
        lookahead.begin(1, "greedy", 10, 40, 0.1)
        before = world.num_empty
        world.run(lookahead, 40)
        asked.append(world.num_empty - before)
    assert asked[0] > 0
    assert sum(asked) < 40, asked  # of 800 rounds
    assert sum(asked[8:]) < 5, asked
    lengths, _ = World(0.8, draft_s, flat).run(lookahead, 2000)
    assert sum(map(bool, lengths[-100:])) > 90, "it pays now, and a probe finds that"


@pytest.mark.parametrize(("empty", "acceptance", "draft_s"), [(0.1, 0.9, 0.05), (0.3, 0.9, 0.05), (0.3, 0.8, 0.1)])
def test_a_draft_that_sometimes_proposes_nothing_is_used(empty: float, acceptance: float, draft_s: float) -> None:
    lookahead = Lookahead()
    world = World(acceptance, draft_s, flat, empty=empty)
    lengths, _ = world.run(lookahead, 400)
    assert world.num_empty + sum(map(bool, lengths)) > 380


def test_a_source_that_proposes_nothing_at_no_cost_is_asked_again() -> None:
    lookahead = Lookahead()
    world = World(0.8, 0.001, flat, empty=1.0)
    world.run(lookahead, 100)
    assert world.num_empty > 95


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
