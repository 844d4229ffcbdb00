"""The predicted cost of passes, from noisy measurements."""

import random

import pytest

from uag.lookahead.costs import Costs, Line


def line(*points: tuple[float, float]) -> Line:
    made = Line()
    made.points.extend(points)
    return made


def costs(*, plain: float = 1.0, blocks: tuple[tuple[int, float], ...] = (), size_ratio: float = 0.0) -> Costs:
    made = Costs()
    made.size_ratio = size_ratio
    made.learn_target(0, plain)
    for size, seconds in blocks:
        made.learn_target(size, seconds)
    return made


@pytest.mark.parametrize(("fixed", "slope"), [(0.0, 2.0), (3.0, 1.0), (5.0, 0.0)])
def test_a_line_is_found_among_slow_outliers(fixed: float, slope: float) -> None:
    draw, made = random.Random(4), Line()
    for number in range(40):
        size = draw.randint(1, 9)
        slow = 3.0 if number % 10 == 3 else 1.0
        made.points.append((size, slow * (fixed + slope * size) * draw.uniform(0.98, 1.02)))
    found_fixed, found_slope = made.fit((0.0, fixed))
    for size in (1, 4, 9):
        assert found_fixed + found_slope * size == pytest.approx(fixed + slope * size, rel=0.1)


def test_measurements_of_one_length_take_the_slope_from_the_known_start() -> None:
    assert line((5, 10.0), (5, 10.1)).fit((0.0, 0.0)) == pytest.approx((0.0, 2.0), abs=0.1)
    assert line((5, 10.0), (5, 10.1)).fit((0.0, 8.0)) == pytest.approx((8.0, 0.4), abs=0.1)


def test_neither_part_of_a_line_is_negative() -> None:
    assert line((1, 5.0), (9, 1.0)).fit((0.0, 9.0))[1] == 0.0
    assert line(*((size, size - 0.9) for size in range(1, 6))).fit((0.0, 0.0))[0] == 0.0


def test_until_drafting_was_measured_the_models_sizes_predict_it() -> None:
    made = costs(plain=2.0, size_ratio=0.1)
    assert made.prices().draft_candidate_s == pytest.approx(0.2)
    made.draft.points.extend([(4, 4.0), (4, 4.0)])
    assert made.prices().round_s(4) - made.prices().round_s(0) == pytest.approx(4.0, rel=0.1)
    made.draft.points.extend([(8, 8.0), (2, 2.0), (6, 6.0)])
    assert made.prices().draft_candidate_s == pytest.approx(1.0)


def test_a_plain_pass_is_never_slower_than_one_over_candidates() -> None:
    assert costs(plain=7.0, blocks=((4, 1.5), (5, 1.6), (3, 1.4))).prices().plain_s == pytest.approx(1.4)


@pytest.mark.parametrize(("gain", "due"), [(1.0, [4, 21, 38, 55, 72, 89]), (2.0, [16, 81])])
def test_plain_passes_are_due_soon_at_first_and_more_rarely_at_a_high_gain(gain: float, due: list[int]) -> None:
    made, lengths = Costs(), []
    for _ in range(100):
        lengths.append(0 if made.is_plain_due(gain) else 4)
        made.learn_target(lengths[-1], 1.0)
        made.num_since_plain += lengths[-1] > 0
    assert [place for place, size in enumerate(lengths) if not size] == due


def test_before_any_prompt_was_read_the_target_and_the_sizes_predict_it() -> None:
    assert costs(size_ratio=0.25).reading_s(100, target_s=4.0, candidate_s=0.1) == 1.0


def test_pass_that_a_later_one_proves_slowed_down_is_forgotten() -> None:
    line = Line()
    line.add(4, 30.0)
    line.add(4, 1.9)
    assert list(line.points) == [(4, 1.9)]
    line.add(8, 1.0)  # twice as many tokens in less than twice the time
    assert list(line.points) == [(4, 1.9), (8, 1.0)]
    line.add(2, 0.4)  # a wider pass may take proportionally longer
    assert list(line.points) == [(8, 1.0), (2, 0.4)]
