"""Estimates and their intervals."""

from __future__ import annotations

from uag.measure import Estimate
from uag.measure.acceptance import ratio


def test_an_interval_is_over_prompts_not_over_tokens() -> None:
    estimate = ratio([100, 0] * 2, [100, 100] * 2)
    assert (estimate.value, estimate.low, estimate.high) == (0.5, 0.0, 1.0)


def test_few_prompts_have_no_interval() -> None:
    assert ratio([], []) == Estimate(0.0)
    assert ratio([1, 1, 1], [2, 2, 2]) == Estimate(0.5)
    assert ratio([1, 0], [2, 0]) == Estimate(0.5)  # a text that is too short is not counted


def test_an_estimate_is_shown_with_its_interval() -> None:
    assert f"{Estimate(0.5, 0.4, 0.6):.0%}, {Estimate(2.0)}" == "50% (40% to 60%), 2.000"
