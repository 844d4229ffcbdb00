"""Acceptance rates of free sources."""

import pytest

from uag.drafting.ranked import AcceptanceRates


def test_rates_start_at_the_priors_and_follow_the_candidates_that_were_checked() -> None:
    rates = AcceptanceRates({"match": (0.2, 0.6)})
    assert rates["match", 1] == pytest.approx(0.6)
    rates.learn([("match", 1)] * 4, 2)  # two accepted, one rejected, one not checked
    assert rates["match", 1] == pytest.approx((0.98 * 1.98 + 4 * 0.6) / (1 + 0.98 * 1.98 + 4), abs=0.01)
    assert rates["match", 0] == pytest.approx(0.2)


def test_rates_can_be_copied_while_another_thread_learns() -> None:
    rates = AcceptanceRates({"match": (0.2, 0.6)})
    copying = iter(rates._counts)
    next(copying)
    rates.learn([("match", 0), ("match", 1)], 1)  # a dictionary that grew could not be iterated any more
    assert list(copying) == [("match", 1)]
