"""Acceptance rates of free sources."""

import pytest

from uag.drafting.ranked import AcceptanceRates


def test_rates_start_at_the_priors_and_follow_the_candidates_that_were_checked() -> None:
    rates = AcceptanceRates((0.2, 0.6))
    assert rates[1] == pytest.approx(0.6)
    rates.learn([1] * 4, 2)  # two accepted, one rejected, one not checked
    assert rates[1] == pytest.approx((0.98 * 1.98 + 4 * 0.6) / (1 + 0.98 * 1.98 + 4), abs=0.01)
    assert rates[0] == pytest.approx(0.2)
