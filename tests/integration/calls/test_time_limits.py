"""A caller's own time limit, whose signal's handler raises an ordinary exception, ends a call wherever it comes."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import uag
from tests.support.calls import GREEDY, PROMPTS, left_padded, pair
from tests.support.forked import ringing
from uag import loading
from uag.kernels import decoders, rounding

INPUTS = left_padded(PROMPTS[:1])


class Rings(nn.Module):
    """A layer that sends a signal in one pass."""

    def __init__(self, inner: nn.Module, ring: Callable[[], None]) -> None:
        super().__init__()
        self.inner, self.ring, self.counts = inner, ring, [0, 0]  # passes until the signal, and so far

    def forward(self, x: torch.Tensor) -> Any:
        self.counts[1] += 1
        if self.counts[1] == self.counts[0]:
            self.ring()
        return self.inner(x)


@pytest.fixture
def ring() -> Iterator[Callable[[], None]]:
    with ringing() as function:
        yield function


@pytest.mark.parametrize("who", ["target", "draft"])
@pytest.mark.parametrize("is_later", [False, True], ids=["first", "later"])
def test_in_any_pass(ring: Callable[[], None], who: str, is_later: bool) -> None:
    """Of the first call, in which trials run, and of a later one."""
    expected = pair()[0].generate(**INPUTS, **GREEDY).tolist()

    def run(number: int) -> int:
        target, draft = copy.deepcopy(pair()[0]), copy.deepcopy(pair()[2])
        model = target if who == "target" else draft
        layer = model.model.norm = Rings(model.model.norm, ring)
        calls: list[uag.Assistant] = []

        def call() -> Any:
            if not calls:
                options = uag.Options(num_candidate_tokens=4, trust_changes=True)
                calls.append(uag.Assistant(draft, pair()[3], pair()[1], options=options))
            return calls[0].generate(target, **INPUTS, **GREEDY).tolist()

        assert not is_later or call() == expected
        layer.counts[:] = number, 0
        if number:
            try:
                call()
                assert layer.counts[1] < number  # how many passes there are depends on their times
            except TimeoutError:
                pass
        assert call() == expected
        assert not calls[0].stats.fallbacks
        return layer.counts[1]

    num_passes = run(0)
    assert num_passes > 3
    for number in range(1, num_passes + 1, max(1, num_passes // 3)):
        run(number)


def test_while_a_decoder_is_made(ring: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    draft = copy.deepcopy(pair()[2])
    for module, name in ((decoders, "describe"), (decoders, "Decoder")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, lambda *_: ring())
            with pytest.raises(TimeoutError):
                decoders.decoder_of(draft, "int8")
    assert not isinstance(decoders.decoder_of(draft, "int8"), str)


def test_while_an_operation_is_measured(ring: Callable[[], None]) -> None:
    with pytest.raises(TimeoutError):
        rounding._is_even(lambda x: ring(), ((torch.float32, False),), ())


@pytest.mark.parametrize("name", ["AutoConfig", "AutoTokenizer"])
def test_while_models_are_loaded(ring: Callable[[], None], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getattr(loading, name), "from_pretrained", lambda *_, **__: ring())
    with pytest.raises(TimeoutError) as caught:
        uag.load_pair()
    assert type(caught.value) is TimeoutError
