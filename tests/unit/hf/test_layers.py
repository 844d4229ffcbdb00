"""A model's modules are listed once per call and thread."""

import threading

from torch import nn

from uag.hf import layers


def test_modules_are_those_of_the_beginning_inside_and_those_of_now_outside() -> None:
    model, other = nn.Sequential(nn.Linear(2, 2)), nn.Sequential()
    with layers.inspected_once(model):
        before = layers.modules(model)
        with layers.inspected_once(other):
            assert layers.modules(other) == [other]
        model.append(nn.Linear(2, 2))
        assert layers.modules(model) is before
        elsewhere: list[int] = []
        thread = threading.Thread(target=lambda: elsewhere.append(len(layers.modules(model))))
        thread.start()
        thread.join()
        assert elsewhere == [3]
    assert len(layers.modules(model)) == 3


def test_what_is_asked_per_call_is_answered_once_inside() -> None:
    model, asked = nn.Sequential(nn.Linear(2, 2)), []

    @layers.per_call
    def size(model: nn.Module) -> int:
        asked.append(model)
        return len(list(model.modules()))

    assert (size(model), size(model)) == (2, 2)
    assert len(asked) == 2
    with layers.inspected_once(model):
        assert (size(model), size(model), size(model[0])) == (2, 2, 1)
        with layers.inspected_once(model[0]):
            size(model[0])
        size(model)
    assert len(asked) == 5
