"""Forms are chosen by measuring, once for each kind of product."""

from types import SimpleNamespace

import pytest
import torch

from uag.products import choices, choosing, clock
from uag.products.forms import FORMS, Form


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "_races", {})


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[tuple[int, ...]]]:
    """Forms that take a known time each, with the shapes of the weights that they were given."""
    seen: dict[str, list[tuple[int, ...]]] = {name: [] for name in FORMS}
    now = [100.0]
    monkeypatch.setattr(choosing, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def slow(name: str, seconds: float) -> Form:
        def form(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
            assert bias is None
            seen[name].append(tuple(weight.shape))
            now[0] += seconds
            return x.new_empty(x.shape[0], weight.shape[0])

        return form

    slept = {"as is": 0.004, "weight first": 0.001, "blocks": 0.02, "oneDNN": 0.003}
    forms = {name: slow(name, slept.get(name, 0.03)) for name in FORMS}

    def missing(*_: object) -> torch.Tensor:
        raise RuntimeError("not built in")

    monkeypatch.setattr(choosing, "FORMS", forms | {"oneDNN, weight first": missing})
    return seen


def test_the_fastest_is_taken_and_what_a_build_lacks_is_left_out(timed: dict[str, list[tuple[int, ...]]]) -> None:
    weight = torch.zeros(64, 32)
    choosing.choose(torch.ones(3, 32), weight, [weight])
    (choice,) = choices()
    assert choice.name == "weight first"
    assert choice.shape[:2] == (64, 32)
    assert choice.shape.num_rows == 3
    assert choice.chosen_s < choice.as_is_s
    assert len(timed["blocks"]) < len(timed["weight first"])  # hopeless ones are not timed again


def test_one_measurement_serves_all_numbers_of_rows_up_to_the_next_step(
    timed: dict[str, list[tuple[int, ...]]],
) -> None:
    weight = torch.zeros(64, 32)
    choosing.choose(torch.ones(9, 32), weight, [weight])
    num_timed = len(timed["as is"])
    choosing.choose(torch.ones(12, 32), weight, [weight])
    assert len(timed["as is"]) == num_timed
    choosing.choose(torch.ones(13, 32), weight, [weight])
    assert len(timed["as is"]) > num_timed
    assert [choice.shape.num_rows for choice in choices()] == [12, 16]


@pytest.mark.usefixtures("timed")
def test_the_clock_stands_still_while_products_are_measured() -> None:
    weight = torch.zeros(64, 32)
    began = clock()
    choosing.choose(torch.ones(2, 32), weight, [weight])
    assert clock() == pytest.approx(began)


def test_large_matrices_are_timed_in_part_and_every_page_in_turn(
    timed: dict[str, list[tuple[int, ...]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "_MAX_TIMED", 64 * 32)
    weight = torch.zeros(300, 32)
    choosing.choose(torch.ones(2, 32), weight, [weight])
    assert set(timed["as is"]) == {(64, 32)}
    assert choices()[0].shape.num_out == 300


def test_a_gain_that_noise_could_explain_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "_MIN_GAIN", 1.0)
    weight = torch.zeros(64, 32)
    choosing.choose(torch.ones(2, 32), weight, [weight])
    assert choices()[0].name == "as is"


def test_a_second_look_counts_the_faster_of_both(
    timed: dict[str, list[tuple[int, ...]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "_SECOND_LOOK_S", -1.0)
    monkeypatch.setattr(choosing, "_NUM_TRIALS", 1)
    weight, x = torch.zeros(64, 32), torch.ones(3, 32)
    choosing.choose(x, weight, [weight])
    (race,) = choosing._races.values()
    race.best_s |= {"weight first": 1.0, "blocks": 0.5}  # as on a machine that was busy
    for _ in range(3):
        choosing.choose(x, weight, [weight])
    assert len(timed["as is"]) == 2
    assert choices()[0].name == "weight first"
