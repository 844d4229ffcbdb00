"""What a confidence is worth: learnt from what the target accepted."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from tests.support.world import proposals
from uag.lookahead import Lookahead, Round
from uag.lookahead.calibration import Calibration


@pytest.mark.parametrize("shape", [lambda c: c, lambda c: c * c, lambda c: 0.5, lambda c: 1.0 - c])
def test_calibration_learns_what_a_confidence_is_worth(shape: Callable[[float], float]) -> None:
    draw, calibration = random.Random(1), Calibration()
    confidences = [draw.random() for _ in range(20_000)]
    for confidence in confidences:
        calibration.learn(confidence, draw.random() < shape(confidence))
    for cell in range(10):  # counts fade, so that a hundred candidates decide
        middle = (cell + 0.5) / 10
        assert calibration.rate(middle) == pytest.approx(shape(middle), abs=0.17)
    assert calibration.mean == pytest.approx(sum(map(shape, confidences)) / len(confidences), abs=0.1)


def test_calibration_starts_with_the_drafts_own_confidence_and_follows_the_text() -> None:
    calibration = Calibration()
    assert calibration.rate(0.35) == 0.35
    assert calibration.mean == pytest.approx(0.7)
    for _ in range(500):
        calibration.learn(1.0, True)
    assert calibration.rate(1.0) == pytest.approx(1.0)
    for _ in range(500):
        calibration.learn(1.0, False)
    assert calibration.rate(1.0) < 0.1


def test_candidates_behind_the_first_rejected_one_teach_nothing() -> None:
    lookahead = Lookahead()
    lookahead.learn_round(Round(4, 0.1, 1.0, [(proposals(0.95, 0.75, 0.55, 0.35), 1)]))
    seen: Sequence[float] = lookahead._calibration.seen
    assert [cell for cell in range(10) if seen[cell]] == [7, 9]
    assert lookahead._calibration.accepted[9] == 1.0
    assert lookahead._calibration.accepted[7] == 0.0


def test_a_confidence_that_has_become_rare_does_not_hold_up_the_mean() -> None:
    """Easy prompts of calls before taught much of high confidences; now the draft doubts, and is mostly wrong."""
    calibration = Calibration()
    for _ in range(500):
        calibration.learn(0.95, True)
    for _ in range(1500):
        calibration.learn(0.15, False)
    assert calibration.mean < 0.05
    assert calibration.rate(0.95) > 0.95
