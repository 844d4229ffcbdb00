"""Estimates and their intervals."""

from __future__ import annotations

import json

import numpy as np
import pytest

from uag.distill.acceptance import Acceptance, Estimate, agreement, ratio, tokens_per_pass
from uag.distill.replay import Replayed


def test_an_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(1)
    truth, num_covered, num_trials = 0.6, 0, 200
    for _ in range(num_trials):
        sizes = generator.integers(20, 60, size=30)
        # Prompts differ in how easy they are, around the truth.
        rates = np.clip(generator.normal(truth, 0.15, size=30), 0, 1)
        found = ratio(generator.binomial(sizes, rates).tolist(), sizes.tolist())
        assert found.low is not None
        assert found.high is not None
        num_covered += found.low <= truth <= found.high
    assert 0.86 <= num_covered / num_trials <= 0.99


def test_an_interval_is_of_prompts_not_of_tokens() -> None:
    found = ratio([100, 0], [100, 100])
    assert (found.value, found.low, found.high) == (0.5, 0.0, 1.0)


def test_one_prompt_allows_no_interval() -> None:
    assert ratio([3], [4]) == Estimate(0.75)
    assert ratio([], []) == Estimate(0.0)
    assert ratio([1, 0], [2, 0]) == Estimate(0.5)  # a text that was too short says nothing


def test_rounds_become_figures() -> None:
    replayed = [Replayed(), Replayed()]
    for num_accepted in (4, 0):
        replayed[0].count(4, num_accepted)
    replayed[1].count(4, 2)
    assert tokens_per_pass(replayed).value == pytest.approx(3.0)
    assert replayed[0].asked == [2, 2, 2, 2]
    assert replayed[0].accepted == [1, 1, 1, 1]
    assert replayed[1].accepted == [1, 1, 0, 0]
    single = [Replayed()]
    for num_accepted in (1, 0, 1, 1):
        single[0].count(1, num_accepted)
    assert agreement(single).value == 0.75


def test_acceptance_survives_json() -> None:
    found = Acceptance(1.0, 4, 8, 300, Estimate(0.5, 0.4, 0.6), Estimate(2.0))
    assert Acceptance.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert "temperature 1: first choice is the target's token 0.500 (0.400 to 0.600)" in str(found)
