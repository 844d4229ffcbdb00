"""Where drafting does not pay it stops; probes find out when it pays again, and cost next to nothing."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.support.world import World, flat, proposals, steep
from uag.lookahead import Lookahead, Round, pauses


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


def test_a_long_prompt_is_not_read_for_a_mere_probe() -> None:
    lookahead = Lookahead()
    world = World(0.05, 1.0, steep)
    world.run(lookahead, 40, draft_prefill_s=5.0)  # it does not pay
    lookahead.begin(1, "greedy", num_prompt_tokens=5_000, num_new_tokens=100, size_ratio=0.1)
    lookahead._now.draft_token_s = 0.01
    lengths, _ = world.run(lookahead, 1500)
    assert not any(lengths)


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


@pytest.mark.parametrize("seed", range(5))
def test_a_hard_text_among_easy_ones_is_soon_left_to_the_target(seed: int) -> None:
    """The draft is as sure as ever, and mostly wrong; the next text is drafted for from its first round on."""
    easy, hard = World(0.85, 0.2, flat, seed), World(0.15, 0.2, flat, seed, confidence=0.85)
    lookahead = Lookahead()
    easy.run(lookahead, 100)
    lookahead.begin(1, "greedy", 10, 100, 0.1)
    lengths, _ = hard.run(lookahead, 60)
    assert lengths[0] > 0
    assert sum(size > 0 for size in lengths) < 30
    lookahead.begin(1, "greedy", 10, 100, 0.1)
    lengths, rate = easy.run(lookahead, 60)
    assert min(lengths[:3]) > 0
    assert rate > 0.8 * easy.best_rate()


@pytest.mark.parametrize("seed", range(5))
def test_a_little_bad_luck_stops_nothing(seed: int) -> None:
    world, lookahead = World(0.3, 0.1, flat, seed), Lookahead()
    assert 1.15 < world.best_rate() < 1.2
    world.run(lookahead, 100)
    lengths, _ = world.run(lookahead, 300)
    assert sum(size > 0 for size in lengths) > 250
