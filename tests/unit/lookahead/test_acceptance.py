"""The acceptance rate of the next candidate, estimated from the last rounds."""

import random

import pytest

from tests.support.world import proposals
from uag.lookahead.acceptance import AcceptanceModel
from uag.lookahead.costs import Prices

FLAT = Prices(1.0, 1.0, 0.0, 0.0, 0.1)


def learn(acceptance: AcceptanceModel, confidence: float, rate: float, num_rounds: int = 100) -> None:
    draw = random.Random(3)
    for _ in range(num_rounds):
        num_accepted = 0
        while num_accepted < 4 and draw.random() < rate:
            num_accepted += 1
        acceptance.learn([(proposals(*[confidence] * 4), num_accepted)], 4)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("confidence", [0.3, 0.6, 0.95])
def test_confidences_are_corrected_by_what_they_proved_to_be_worth(confidence: float, rate: float) -> None:
    acceptance = AcceptanceModel()
    learn(acceptance, confidence, rate)
    assert acceptance.mean == pytest.approx(rate, abs=0.15)
    assert acceptance.rate(confidence) == pytest.approx(rate, abs=0.15)
    assert acceptance.rate(0.1) < acceptance.rate(0.5) < acceptance.rate(0.99)


@pytest.mark.parametrize("confidence", [0.0, 1.0])
def test_certain_confidences_stay_certain(confidence: float) -> None:
    acceptance = AcceptanceModel()
    assert acceptance.rate(confidence) == confidence
    learn(acceptance, confidence, 0.5)
    assert 0.0 <= acceptance.rate(confidence) <= 1.0


def test_before_any_round_confidences_count_as_they_are() -> None:
    assert AcceptanceModel().rate(0.35) == pytest.approx(0.35)
    assert AcceptanceModel().mean == pytest.approx(0.7)


def test_drafting_that_proposes_nothing_counts_as_a_rejected_candidate() -> None:
    acceptance = AcceptanceModel()
    before = acceptance.gain(FLAT), acceptance.mean
    acceptance.learn([([], 0)], 1)
    assert acceptance.gain(FLAT) < before[0]
    assert acceptance.mean < before[1]
