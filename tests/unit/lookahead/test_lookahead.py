"""How far to draft: lengths near the optimum, losses within bounds, and decisions that are re-tested."""

import random

import pytest

from tests.support.world import Cost, World, flat, proposals, steep
from uag.lookahead import MAX_CANDIDATES, Lookahead, Round


def call(lookahead: Lookahead, world: World, num_rounds: int, num_prompt_tokens: int = 0) -> tuple[list[int], float]:
    """Run a call; return the candidates of each round, and its time relative to plain decoding."""
    lookahead.begin(1, "greedy", num_prompt_tokens, num_rounds, 0.1)
    lengths, rate = world.run(lookahead, num_rounds)
    return lengths, 1.0 / rate


@pytest.mark.parametrize("acceptance", [0.3, 0.6, 0.95])
@pytest.mark.parametrize(("draft_s", "target_s"), [(0.02, flat), (0.1, flat), (0.02, steep), (0.3, steep)])
def test_lengths_are_near_the_best_one(acceptance: float, draft_s: float, target_s: Cost) -> None:
    world, lookahead = World(acceptance, draft_s, target_s), Lookahead()
    world.run(lookahead, 100)
    lengths, _ = world.run(lookahead, 300)
    rate = sum(map(world.rate, lengths)) / len(lengths)  # expected values, without sampling noise
    assert rate >= 0.93 * world.best_rate()


def test_plain_decoding_is_measured_first_and_then_one_candidate_is_tried() -> None:
    lengths, _ = World(0.9, 0.02, flat).run(Lookahead(), 8)
    assert lengths[:2] == [0, 1]
    assert lengths[2] > 1
    assert lengths.count(0) == 1


def test_a_draft_of_known_size_is_used_in_the_first_round_and_plain_decoding_is_measured_later() -> None:
    lookahead = Lookahead()
    lookahead.begin(1, "greedy", 20, 60, 0.1)
    lookahead.learn_prefill(2.0)
    lengths, _ = World(0.7, 0.1, flat).run(lookahead, 30)
    assert lengths[0] > 1
    assert 0 in lengths[4:]


@pytest.mark.parametrize(
    ("size_ratio", "num_prompt_tokens", "limit"), [(0.1, 20, 4), (0.0, 20, 0), (0.7, 20, 0), (0.1, 5000, 0)]
)
def test_the_first_round_drafts_only_where_the_sizes_promise_a_gain(
    size_ratio: float, num_prompt_tokens: int, limit: int
) -> None:
    lookahead = Lookahead()
    lookahead.begin(1, "greedy", num_prompt_tokens, 60, size_ratio)
    lookahead.learn_prefill(2.0)
    assert lookahead.plan() == limit


@pytest.mark.parametrize(("acceptance", "most"), [(0.0, 4), (1.0, MAX_CANDIDATES)])
def test_a_new_pair_drafts_longer_the_more_candidates_are_accepted(acceptance: float, most: int) -> None:
    """The draft is sure of itself, whatever happens."""
    lookahead = Lookahead()
    lookahead.begin(1, "greedy", 20, 200, 0.01)
    lookahead.learn_prefill(2.0)
    lengths, _ = World(acceptance, 0.01, flat, confidence=0.999).run(lookahead, 8)
    assert max(lengths) == most


@pytest.mark.parametrize("num_rounds", [30, 300])
@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.5])
@pytest.mark.parametrize("draft_s", [0.3, 1.5])
def test_a_draft_that_never_pays_costs_two_percent(acceptance: float, draft_s: float, num_rounds: int) -> None:
    world, lookahead = World(acceptance, draft_s, steep), Lookahead()
    assert world.best_rate() == 1.0
    call(lookahead, world, num_rounds)
    seconds = [call(lookahead, world, num_rounds)[1] for _ in range(3000 // num_rounds)]
    assert 1.0 < sum(seconds) / len(seconds) < 1.02


def test_trials_never_end() -> None:
    world, lookahead = World(0.0, 0.1, flat, confidence=0.7), Lookahead()
    num_trials = [sum(map(bool, call(lookahead, world, 64)[0])) for _ in range(60)]
    assert sum(num_trials[-20:]) > 0
    easy = World(0.9, 0.1, flat, confidence=0.7)
    assert sum(map(bool, call(lookahead, easy, 128)[0])) > 60


def test_a_cold_first_call_does_not_switch_a_draft_off() -> None:
    """The first draft passes take thirty times as long, and their candidates are mostly wrong."""
    lookahead = Lookahead()
    lookahead.begin(1, "greedy", 0, 30)
    World(0.1, 3.0, flat).run(lookahead, 2)
    World(0.1, 0.1, flat).run(lookahead, 28)
    lengths, _ = call(lookahead, World(0.9, 0.1, flat), 60)
    assert sum(map(bool, lengths)) > 40


@pytest.mark.parametrize("draft_s", [0.05, 0.3])
def test_a_source_that_was_wrong_in_four_calls_is_used_again_soon(draft_s: float) -> None:
    lookahead = Lookahead()
    for _ in range(4):
        call(lookahead, World(0.0, draft_s, flat, confidence=0.6), 50)
    shares = []
    for _ in range(3):
        lengths, _ = call(lookahead, World(0.99, draft_s, flat, confidence=0.6), 50)
        shares.append(sum(map(bool, lengths)) / len(lengths))
    assert shares[0] > 0.3
    assert min(shares[1:]) > 0.9


@pytest.mark.parametrize("seed", range(5))
def test_a_hard_text_among_easy_ones_is_soon_left_to_the_target(seed: int) -> None:
    """The draft is as confident as before, but mostly wrong; on the next text, drafting starts in the first round."""
    easy, hard = World(0.85, 0.2, flat, seed), World(0.15, 0.2, flat, seed, confidence=0.85)
    lookahead = Lookahead()
    easy.run(lookahead, 100)
    lengths, _ = call(lookahead, hard, 60)
    assert any(lengths[:2])
    assert sum(size > 0 for size in lengths) < 30
    lengths, seconds = call(lookahead, easy, 60)
    assert sum(map(bool, lengths[:4])) > 2
    assert 1.0 / seconds > 0.8 * easy.best_rate()


def test_a_text_that_becomes_easy_is_noticed() -> None:
    lookahead = Lookahead()
    call(lookahead, World(0.0, 0.2, flat), 200)
    lengths, _ = World(0.95, 0.2, flat).run(lookahead, 200)
    assert sum(map(bool, lengths[-50:])) > 45


@pytest.mark.parametrize("draft_s", [0.05, 0.2, 0.5])
def test_a_draft_that_proposes_nothing_costs_two_percent(draft_s: float) -> None:
    lookahead, world = Lookahead(), World(0.8, draft_s, flat, empty=1.0)
    call(lookahead, world, 200)
    before = world.num_empty
    for _ in range(20):
        call(lookahead, world, 100)
    assert 0 < (world.num_empty - before) * draft_s < 0.02 * 2000


@pytest.mark.parametrize(
    ("empty", "acceptance", "draft_s"), [(0.1, 0.9, 0.05), (0.3, 0.9, 0.05), (0.3, 0.8, 0.1), (1.0, 0.8, 0.001)]
)
def test_a_draft_that_sometimes_proposes_nothing_or_nothing_at_no_cost_is_used(
    empty: float, acceptance: float, draft_s: float
) -> None:
    world = World(acceptance, draft_s, flat, empty=empty)
    lengths, _ = world.run(Lookahead(), 400)
    assert world.num_empty + sum(map(bool, lengths)) > 370


def test_what_was_learned_is_used_by_the_next_call() -> None:
    lookahead = Lookahead()
    assert not lookahead.plan()
    World(0.9, 0.02, flat).run(lookahead, 50)
    lookahead.begin(1, "greedy", 10, 100, 0.1)
    assert lookahead.plan() > 1
    lookahead.begin(2, "greedy", 10, 100)  # costs of other numbers of rows are not known
    assert not lookahead.plan()


def test_the_pass_over_the_prompt_says_nothing_about_others() -> None:
    lookahead = Lookahead()
    lookahead.learn_round(Round(5, 0.1, 50.0, [(proposals(*[0.9] * 5), 5)], is_special=True))
    assert not lookahead.costs.block.points


def test_a_candidate_costs_as_many_draft_passes_as_it_takes_on_average() -> None:
    """Most take one draft pass, some three: the cost of the usual candidate would be too low."""
    lookahead = Lookahead()
    lookahead.begin(1, "greedy")
    for number in range(40):
        size, num_passes = (2, 2) if number % 3 else (2, 6)
        lookahead.learn_round(
            Round(size, 0.1 * num_passes, 1.0, [(proposals(0.9, 0.9), size)], num_draft_passes=num_passes)
        )
    assert lookahead.prices.draft_candidate_s == pytest.approx(0.1 * 10 / 6, rel=0.15)
    lookahead.learn_round(Round(1, 0.0001, 1.0, [(proposals(0.9), 1)], num_draft_passes=0))
    assert lookahead.prices.draft_candidate_s == pytest.approx(0.1 * 10 / 6, rel=0.2)


def test_a_row_goes_on_alone_only_if_that_pays_for_the_width_of_all() -> None:
    lookahead = Lookahead()
    for _ in range(20):  # a plain pass takes 1 s, a candidate 0.4 s
        lookahead.learn_round(Round(0, 0.0, 1.0, []))
        lookahead.learn_round(Round(1, 0.2, 1.2, [(proposals(0.9), 1)] * 2))
    lookahead.plan(1)
    assert lookahead.go_on(0, proposals(0.95))
    lookahead.plan(1)
    assert lookahead.go_on(0, proposals(0.95))
    assert not lookahead.go_on(1, proposals(0.01))
    assert not lookahead.go_on(0, proposals(0.95, 0.95))
    lookahead.plan(1)  # rows that draft one after another get no wider pass
    for row in range(3):
        assert lookahead.go_on(row, proposals(0.95))
        assert lookahead.go_on(row, proposals(0.95, 0.95))


def test_a_clock_that_stands_still_divides_nothing_by_zero() -> None:
    lookahead = Lookahead()
    lookahead.begin(1, "greedy", 20, 60, 0.1)
    lookahead.learn_prefill(0.0)
    for _ in range(50):
        size = lookahead.plan()
        lookahead.learn_round(Round(size, 0.0, 0.0, [(proposals(*[0.1] * size), 0)] if size else []))


def num_plain_after_fault(start: int, length: int, slowness: float, stall_s: float, num_before: int) -> int:
    """Return the plain passes between the end of a fault and the third round that drafts again.

    Args:
        start: number of passes (of the target or of the draft) before the fault, from the call in which it occurs.
        length: number of passes that it slows down.
        slowness: how many times as long they take.
        stall_s: additional seconds of each of them; a plain pass takes one.
        num_before: calls before it.
    """
    draw, lookahead, num_passes = random.Random(start), Lookahead(), 0

    def seen(seconds: float) -> float:
        nonlocal num_passes
        is_slow = start <= num_passes < start + length
        num_passes += 1
        return seconds * draw.lognormvariate(0.0, 0.03) * (slowness if is_slow else 1.0) + stall_s * is_slow

    num_plain = num_drafted = 0
    for number in range(num_before + 2):
        num_passes = num_passes if number > num_before else 0
        lookahead.begin(1, "greedy", 20, 160, 0.1)
        lookahead.learn_prefill(seen(2.0))
        num_written, has_read = 1, False
        while num_written < 160:
            limit, drafted = lookahead.plan(), proposals()
            while len(drafted) < limit:
                drafted += proposals(0.8)
                if not lookahead.go_on(0, drafted):
                    break
            num_accepted = 0
            while num_accepted < len(drafted) and draw.random() < 0.8:
                num_accepted += 1
            prefill_s = seen(0.2) if drafted and not has_read else 0.0
            draft_s = seen(0.1 * len(drafted)) if drafted else 0.0
            target_s = seen(1.0 + 0.03 * len(drafted))
            lookahead.learn_round(Round(len(drafted), draft_s, target_s, [(drafted, num_accepted)], prefill_s))
            num_written += 1 + num_accepted
            has_read = has_read or bool(drafted)
            if number >= num_before and num_passes > start + length:
                num_drafted += bool(drafted)
                num_plain += not drafted
                if num_drafted == 3:
                    return num_plain
    return 1000


@pytest.mark.parametrize("num_before", [0, 2])
@pytest.mark.parametrize(
    ("slowness", "stall_s", "lengths"),
    [
        (3.0, 0.0, (1, 2, 5, 13, 30, 70)),
        (30.0, 0.0, (1, 2, 5, 13, 30, 70)),
        (1.0, 5.0, (1, 3, 6)),
        (1.0, 500.0, (1, 3, 6)),
    ],
)
def test_after_a_fault_of_the_clock_the_draft_is_soon_used_again(
    slowness: float, stall_s: float, lengths: tuple[int, ...], num_before: int
) -> None:
    """Ten plain passes are about two rounds of five tokens."""
    for length in lengths:
        waits = [num_plain_after_fault(start, length, slowness, stall_s, num_before) for start in range(0, 30, 3)]
        assert max(waits) <= 10, (length, waits)


def test_a_prompt_that_takes_longer_to_read_than_can_be_won_is_not_read() -> None:
    """2,907 prompt tokens and 8 new ones: the draft reads for 38 s, while plain decoding takes less than a second."""
    lookahead = Lookahead()
    lookahead.begin(1, "greedy", 2907, 8, 0.25)
    lookahead.learn_prefill(18.0)
    lengths, _ = World(0.9, 0.015, lambda size: 0.06 * flat(size)).run(lookahead, 8)
    assert not any(lengths)


def test_a_coarse_clock_may_measure_nothing() -> None:
    lookahead = Lookahead()
    for size in (0, 4, 4, 0):
        lookahead.plan()
        lookahead.learn_round(Round(size, 0.0, 0.0, [(proposals(*[0.9] * size), size)]))
    assert lookahead.plan() >= 0


def test_the_same_prompt_is_read_where_reading_is_fast_or_much_is_to_be_written() -> None:
    for token_s, num_new_tokens in ((0.00001, 20), (0.002, 256)):
        lookahead = Lookahead()
        lookahead.begin(1, "greedy", 2907, num_new_tokens, 0.1)
        lookahead.costs.reading.add(91, 91 * token_s)
        lengths, _ = World(0.95, 0.001, lambda size: 0.06 * flat(size)).run(lookahead, 20)
        assert any(lengths)


def test_a_short_first_prompt_does_not_forbid_longer_ones() -> None:
    """Its six tokens took 0.228 s, because the draft was cold."""
    lookahead = Lookahead()
    lookahead.begin(1, "greedy", 6, 60, 0.2)
    World(0.6, 0.015, lambda size: 0.06 * flat(size)).run(lookahead, 60, draft_prefill_s=0.228)
    lookahead.begin(1, "greedy", 100, 256, 0.2)
    lengths, _ = World(0.9, 0.015, lambda size: 0.06 * flat(size)).run(lookahead, 60)
    assert any(lengths)


@pytest.mark.parametrize(("num_slow", "most"), [(1, 1), (2, 1), (3, 60)])
def test_prompts_that_seemed_slow_to_read_are_read_again(num_slow: int, most: int) -> None:
    """Something else made readings take thirty times as long, which no call of 60 tokens saves."""
    lookahead = Lookahead()
    for number in range(num_slow + most):
        lookahead.begin(1, "greedy", 250, 60, 0.2)
        lookahead.learn_prefill(1.0)
        seconds = 6.0 if number < num_slow else 0.2
        lengths, _ = World(0.9, 0.012, lambda size: 0.06 * flat(size)).run(lookahead, 20, draft_prefill_s=seconds)
    assert any(lengths)


@pytest.mark.parametrize("num_lost", [0, 1, 3])
def test_costs_that_a_fault_raised_do_not_prevent_the_next_prompt_from_being_read(num_lost: int) -> None:
    """Reading takes as long as two plain passes, more than trials may cost in a call of 64 tokens."""
    lookahead, world = Lookahead(), World(0.8, 0.1, flat)
    call(lookahead, world, 64)
    for _ in range(12):
        lookahead.costs.draft.add(1, 5.0)
        lookahead.costs.block.add(1, 30.0)
    for _ in range(num_lost):
        lookahead._lost.append((1.2, 1.0))
        lookahead._trial_tokens = 0.0
    lookahead.begin(1, "greedy", 100, 64, 0.1)
    lookahead.learn_prefill(20.0)
    lengths, _ = world.run(lookahead, 30, draft_prefill_s=2.0)
    assert sum(map(bool, lengths)) > 20


def test_costs_that_trials_confirmed_prevent_prompts_from_being_read() -> None:
    """Reading takes as long as ten plain passes. Drafting is twenty times slower than guessed, which would gain."""
    lookahead, world, num_read = Lookahead(), World(0.8, 2.0, flat), 0
    for _ in range(20):
        lookahead.begin(1, "greedy", 100, 64, 0.1)
        lookahead.learn_prefill(200.0)
        num_read += any(world.run(lookahead, 64, draft_prefill_s=10.0)[0])
    assert 0 < num_read <= 4


def test_a_long_prompt_is_read_once_the_call_has_become_long() -> None:
    lookahead = Lookahead()
    lookahead.begin(1, "greedy", 2907, 8000, 0.1)
    lookahead.costs.reading.add(91, 91 * 0.01)
    world = World(0.95, 0.001, lambda size: 0.06 * flat(size))
    assert not any(world.run(lookahead, 200)[0])
    assert any(world.run(lookahead, 2000)[0])


def test_accepted_free_candidates_count_as_output_tokens() -> None:
    lookahead = Lookahead()
    lookahead.begin(1, "greedy", 0, 100)
    lookahead.learn_round(Round(9, 0.0, 1.0, [], num_tokens=10.0))
    assert lookahead._num_left == 90.0


def test_a_fixed_length_is_kept_whatever_it_costs() -> None:
    lookahead = Lookahead(fixed=7)
    lookahead.begin(1, "greedy", 10**6, 1, 2.0)
    lengths, _ = World(0.01, 9.0, steep).run(lookahead, 40)
    assert lengths == [7] * 40


def test_a_fixed_length_may_end_at_low_confidence() -> None:
    lookahead = Lookahead(fixed=7, min_confidence=0.5)
    assert lookahead.plan() == 7
    assert lookahead.go_on(0, proposals(0.8))
    assert lookahead.go_on(1, proposals(0.9))
    assert not lookahead.go_on(0, proposals(0.8, 0.6))
    assert lookahead.go_on(1, proposals(0.9, 0.6))
    lookahead.plan()  # a new round counts from zero
    assert lookahead.go_on(0, proposals(0.8))


@pytest.mark.parametrize("min_confidence", [0.0, 0.5])
def test_an_uncertain_candidate_ends_an_adaptive_round(min_confidence: float) -> None:
    lookahead = Lookahead(min_confidence=min_confidence)
    World(0.9, 0.1, flat).run(lookahead, 100)
    if not lookahead.plan():  # a plain pass was due
        lookahead.learn_round(Round(0, 0.0, 1.0, [([], 0)]))
    assert lookahead.plan() == MAX_CANDIDATES
    assert lookahead.go_on(0, proposals(0.9))
    assert not lookahead.go_on(0, proposals(0.9, 0.02))


def test_of_free_candidates_as_many_are_taken_as_pay() -> None:
    lookahead = Lookahead()
    assert lookahead.best_common([[0.9]]) == (0, 0.0)  # plain decoding was not measured
    World(0.9, 0.02, steep).run(lookahead, 200)
    size, rate = lookahead.best_common([[0.9, 0.9, 0.05, 0.05]])
    assert size == 2
    assert rate == pytest.approx((1 + 0.9 + 0.81) / steep(3), rel=0.05)
    assert lookahead.best_common([[0.01, 0.01]])[0] == 0
    assert lookahead.best_common([[]])[0] == 0


def test_rows_choose_free_candidates_together_since_a_pass_is_as_wide_as_its_longest_row() -> None:
    lookahead = Lookahead()
    lookahead.begin(4, "greedy")
    for size in range(5):
        lookahead.learn_round(Round(size, 0.0, steep(size + 1), []))
    assert lookahead.best_common([[0.95] * 4, [], [], []])[0] == 0
    size, rate = lookahead.best_common([[0.95] * 4] * 4)
    assert size == 4
    assert rate == pytest.approx(sum(0.95**n for n in range(5)) / steep(5), rel=0.05)


def test_free_candidates_fill_every_slot_of_passes_of_a_fixed_width() -> None:
    lookahead = Lookahead()
    for pass_width, size in ((8, 7), (None, 0), (8, 7)):  # what passes of one kind cost is not mixed with the other's
        lookahead.begin(4, "greedy", pass_width=pass_width)
        assert pass_width == 8 or not lookahead.costs.plain or lookahead.prices.verify_candidate_s > 0
        for num_candidates in (0, 7, 2, 0, 7):
            seconds = 2.0 if pass_width else 1.0 + 0.1 * num_candidates
            lookahead.learn_round(Round(num_candidates, 0.0, seconds, []))
        assert lookahead.best_common([[0.01] * 7, [], [], []])[0] == size
        assert lookahead.prices.plain_s == (2.0 if pass_width else 1.0)


def test_drafted_candidates_of_a_fixed_width_cost_draft_passes_only() -> None:
    lookahead = Lookahead()
    lookahead.begin(1, "greedy", pass_width=8)
    for size in (0, 2, 3, 0, 4):
        lookahead.learn_round(Round(size, 0.1 * size, 1.0, [(proposals(*[0.9] * size), size)] if size else []))
    assert lookahead.prices.round_s(7) == pytest.approx(1.7)


@pytest.mark.parametrize(("num_rows", "pays"), [(1, True), (2, True), (16, False), (64, False)])
def test_the_more_rows_the_more_a_draft_must_promise(num_rows: int, pays: bool) -> None:
    """The mean over all rows differs from the rate of the last row to end."""
    lookahead = Lookahead()
    lookahead.begin(num_rows, "greedy", 0, 100)
    for size in (0, 2, 3, 2, 3, 0):
        outcomes = [(proposals(*[0.9] * size), size // 2)] * num_rows
        lookahead.learn_round(Round(size, 0.35 * size, flat(size + 1), outcomes))
    gain = lookahead.model_rate() * lookahead.prices.plain_s * lookahead._required_gain
    assert 1.07 < gain < 1.2
    assert (lookahead.plan(num_rows) > 1) == pays  # a trial may have one candidate
