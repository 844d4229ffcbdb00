"""How far to draft for an engine whose speed is observed only through its calls. Seconds are simulated."""

import random

import pytest

from uag.lookahead import MAX_CANDIDATES
from uag.proposal import Proposal
from uag.vllm.pace import Pace

MOST = 5


class Engine:
    """Requests that an engine serves together."""

    def __init__(
        self, num_requests: int, acceptance: float, draft_s: float, token_s: float = 0.01, reading_s: float = 0.0
    ) -> None:
        self.acceptance, self.draft_s, self.token_s, self.reading_s = acceptance, draft_s, token_s, reading_s
        self.random = random.Random(5)
        self.pace = Pace()
        self.now = 0.0
        self.num_written = self.num_drafted = 0
        self.serve(num_requests)

    def serve(self, num_requests: int) -> None:
        self.sizes = [0] * num_requests
        self.unread = set(range(num_requests))
        self.candidates: list[list[Proposal]] = [[] for _ in range(num_requests)]

    def speed_up(self) -> float:
        return self.num_written / len(self.sizes) / self.now

    def run(self, num_rounds: int) -> int:
        before = self.num_drafted
        for _ in range(num_rounds):
            self.round()
        return self.num_drafted - before

    def round(self) -> None:
        self.now += 1.0 + self.token_s * sum(map(len, self.candidates))
        outcomes = []
        for i, candidates in enumerate(self.candidates):
            accepted = 0
            while accepted < len(candidates) and self.random.random() < self.acceptance:
                accepted += 1
            if candidates:
                outcomes.append((candidates, accepted))
            self.sizes[i] += 1 + accepted
            self.num_written += 1 + accepted
            if self.sizes[i] > 200:
                self.sizes[i] = 0
                self.unread.add(i)
        limit = min(self.pace.plan(self.sizes, len(self.sizes), self.now, outcomes), MOST)
        start_s, reading_s = self.now, 0.0
        self.candidates = [[] for _ in self.sizes]
        for i, drafted in enumerate(self.candidates):
            while len(drafted) < limit:
                drafted.append(Proposal(0, self.acceptance))
                self.now += self.draft_s
                if not self.pace.lookahead.go_on(i, drafted):
                    break
            if drafted and i in self.unread:
                self.unread.remove(i)
                reading_s += self.reading_s
        self.now += reading_s
        self.num_drafted += any(self.candidates)
        self.pace.end(self.sizes, [*map(len, self.candidates)], self.now - start_s, self.now)


@pytest.mark.parametrize("num_requests", [1, 4, 32])
def test_where_drafting_is_cheap_it_is_fast(num_requests: int) -> None:
    engine = Engine(num_requests, 0.8, 0.02 / num_requests, token_s=0.0)
    assert engine.run(300) > 250
    assert engine.speed_up() > 2.5  # 3.69 tokens for 1.1 steps are 3.35 times as fast


@pytest.mark.parametrize("num_requests", [1, 4, 32])
@pytest.mark.parametrize("acceptance", [0.1, 0.5])
def test_where_drafting_does_not_pay_hardly_anything_is_lost(num_requests: int, acceptance: float) -> None:
    engine = Engine(num_requests, acceptance, 0.8 / num_requests, reading_s=4.0 / num_requests)
    assert engine.run(3000) > 0
    assert engine.speed_up() > 0.97


def test_what_pays_for_few_requests_may_not_for_many() -> None:
    """One proposer sees the load rise and fall."""
    engine = Engine(1, 0.7, 0.05)
    drafted = []
    for num_requests in (1, 32, 1):
        engine.serve(num_requests)
        drafted.append(engine.run(150))
    assert drafted[0] > 120
    assert drafted[1] < 15
    assert drafted[2] > 135  # from the first round on


def test_steps_that_served_others_say_nothing_of_costs() -> None:
    pace = Pace()
    pace.plan([10, 10], 2, 0.0, [])
    pace.end([10, 10], [0, 0], 0.0, 0.0)
    for sizes, num in (([11], 1), ([11, 11, 3], 3), ([11, 40], 2), ([], 2), ([10, 11], 2)):
        pace.plan(sizes, num, 5.0, [])
        assert not pace.lookahead.costs.plain
        pace.end([10, 10], [0, 0], 0.0, 0.0)
    pace.plan([11, 11], 2, 5.0, [])
    assert list(pace.lookahead.costs.plain) == [5.0]


def test_after_an_interruption_the_time_since_says_nothing() -> None:
    pace = Pace()
    pace.plan([10], 1, 0.0, [])
    pace.end([10], [0], 0.0, 0.0)
    pace.interrupt()
    pace.plan([11], 1, 100.0, [])
    assert not pace.lookahead.costs.plain


def test_what_was_accepted_is_learned_once() -> None:
    pace = Pace()
    pace.plan([10], 1, 0.0, [])
    pace.end([10], [2], 0.1, 0.1)
    pace.plan([12], 1, 1.0, [([Proposal(0, 0.95), Proposal(0, 0.75)], 1)])
    learned = pace.lookahead._acceptance.mean
    pace.end([12], [0], 0.0, 1.0)
    pace.plan([13], 1, 2.0, [])
    assert pace.lookahead._acceptance.mean == learned < 0.7


def test_a_draft_that_proposes_nothing_is_soon_asked_rarely() -> None:
    pace, now, num_asked = Pace(), 0.0, 0
    for size in range(400):
        now += 1.0
        limit = pace.plan([size], 1, now, [])
        num_asked += limit > 0
        now += 0.3 * (limit > 0)
        pace.end([size], [0], 0.3 * (limit > 0), now)
    assert 0 < 0.3 * num_asked < 0.02 * now


def test_min_confidence_alone_decides_without_a_clock() -> None:
    pace = Pace(0.5)
    pace.plan([10], 1, 0.0, [])
    pace.end([10], [2], 100.0, 100.0)
    assert pace.plan([12], 1, 101.0, [([Proposal(0, 0.9)] * 2, 0)]) == MAX_CANDIDATES
    assert pace.lookahead.go_on(0, [Proposal(0, 0.6)])
    assert not pace.lookahead.go_on(0, [Proposal(0, 0.6), Proposal(0, 0.6)])


def test_a_request_that_stopped_drafts_again_in_the_next_round() -> None:
    pace = Pace(min_confidence=0.4)
    for _ in range(3):
        assert pace.plan([3], 1, 0.0, []) == MAX_CANDIDATES
        assert pace.lookahead.go_on(0, [Proposal(1, 0.9)])
        assert not pace.lookahead.go_on(0, [Proposal(1, 0.9), Proposal(2, 0.3)])
