"""Acceptance rates of free sources."""

import copy
import pickle

import pytest

from uag.drafting.ranked import AcceptanceRates


def test_rates_start_at_the_priors_and_follow_the_candidates_that_were_checked() -> None:
    rates = AcceptanceRates((0.2, 0.6))
    assert rates[1] == pytest.approx(0.6)
    rates.learn([1] * 4, 2)  # two accepted, one rejected, one not checked
    assert rates[1] == pytest.approx((0.98 * 1.98 + 4 * 0.6) / (1 + 0.98 * 1.98 + 4), abs=0.01)
    assert rates[0] == pytest.approx(0.2)


def test_a_copy_learns_separately() -> None:
    rates = AcceptanceRates((0.2, 0.6))
    rates.learn([0, 1], 1)
    learned = [rates[0], rates[1]]
    copies = copy.deepcopy(rates), pickle.loads(pickle.dumps(rates))
    rates.learn([0, 1], 0)
    assert [[each[0], each[1]] for each in copies] == [learned, learned]
    assert rates[0] != learned[0]
