"""A model's modules are listed once per call and thread."""

import threading

from torch import nn

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
