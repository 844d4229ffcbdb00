"""A model's modules are listed once per call and thread; their mode is put back when the last thread leaves."""

import threading
from collections.abc import Callable

from torch import nn

from tests.support.forked import elsewhere
from uag.hf import inspection


def test_modules_are_those_of_the_beginning_inside_and_those_of_now_outside() -> None:
    model, other = nn.Sequential(nn.Linear(2, 2)), nn.Sequential()
    with inspection.inspected_once(model):
        before = inspection.modules(model)
        with inspection.inspected_once(other):
            assert inspection.modules(other) == [other]
        model.append(nn.Linear(2, 2))
        assert inspection.modules(model) is before
        elsewhere: list[int] = []
        thread = threading.Thread(target=lambda: elsewhere.append(len(inspection.modules(model))))
        thread.start()
        thread.join()
        assert elsewhere == [3]
    assert len(inspection.modules(model)) == 3


def test_what_is_asked_per_call_is_answered_once_inside() -> None:
    model, asked = nn.Sequential(nn.Linear(2, 2)), []

    @inspection.per_call
    def size(model: nn.Module) -> int:
        asked.append(model)
        return len(list(model.modules()))

    assert (size(model), size(model)) == (2, 2)
    assert len(asked) == 2
    with inspection.inspected_once(model):
        assert (size(model), size(model), size(model[0])) == (2, 2, 1)
        with inspection.inspected_once(model[0]):
            size(model[0])
        size(model)
    assert len(asked) == 5


def modes(model: nn.Module) -> list[bool]:
    return [part.training for part in model.modules()]


def test_modules_are_in_evaluation_until_the_last_of_two_threads_leaves() -> None:
    model = nn.Sequential(nn.Dropout(), nn.Linear(2, 2).eval())

    def evaluate(wait: Callable[[], None]) -> None:
        with inspection.in_evaluation(model):
            wait()
            assert modes(model) == [False, False, False]

    with elsewhere(evaluate):
        with inspection.in_evaluation(model):  # begins later and ends first
            assert modes(model) == [False, False, False]
        assert modes(model) == [False, False, False]
        assert inspection.is_training(model)
    assert modes(model) == [True, True, False]
    with inspection.in_evaluation(model):
        with elsewhere(evaluate):  # the other way round
            pass
        assert modes(model) == [False, False, False]
    assert modes(model) == [True, True, False]
    assert not inspection._evaluating
