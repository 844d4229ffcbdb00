"""A caller's own time limit, whose signal's handler raises an ordinary exception, ends what runs wherever it comes."""

import copy
import signal
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoConfig

import uag
from tests.support.calls import GREEDY, PROMPTS, left_padded, pair
from tests.support.forked import ringing
from tests.support.kernels import needs_kernels
from uag import bench, loading, ray
from uag.drafting import PromptLookup
from uag.drafting.drafter import Ask
from uag.drafting.models import llama_cpp
from uag.hf.decoder import COPY
from uag.kernels import decoders, rounding
from uag.ray import BatchGenerator
from uag.structured.json_schemas import JsonSchemas

INPUTS = left_padded(PROMPTS[:1])


class Rings(nn.Module):
    """A layer that sends a signal in one pass."""

    def __init__(self, inner: nn.Module, ring: Callable[[], None]) -> None:
        super().__init__()
        self.inner, self.ring = inner, ring
        self.counts = np.zeros(2, dtype=int)  # passes until the signal, and so far; a trial would restore a list

    def forward(self, x: torch.Tensor) -> Any:
        self.counts[1] += 1
        if self.counts[1] == self.counts[0]:
            self.ring()
        return self.inner(x)


@pytest.fixture
def ring() -> Iterator[Callable[[], None]]:
    with ringing() as function:
        yield function


def test_a_handler_that_lets_later_signals_pass() -> None:
    """Such as many of SIGTERM, which replace themselves before they raise their error."""

    def handle(number: int, _: Any) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise TimeoutError

    for number in (1, 2, 9):
        target = copy.deepcopy(pair()[0])
        with ringing(handler=handle) as ring:
            layer = target.model.norm = Rings(target.model.norm, ring)
            layer.counts[:] = number, 0
            with pytest.raises(TimeoutError):
                uag.Assistant(None, trust_changes=True).generate(target, **INPUTS, **GREEDY)
        assert layer.counts[1] == number


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
        return int(layer.counts[1])

    num_passes = run(0)
    assert num_passes > 3
    for number in range(1, num_passes + 1, max(1, num_passes // 3)):
        run(number)


@needs_kernels
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


def _row_of_ray(ring: Callable[..., Any], patch: pytest.MonkeyPatch) -> None:
    generator = BatchGenerator(load=uag.load_pair)
    patch.setattr(ray, "encode", ring)
    generator.generate([{"prompt": "The", "id": 0}])


def _drafts_of_bench(ring: Callable[..., Any], patch: pytest.MonkeyPatch) -> None:
    patch.setattr(bench.drafts, "load_draft", ring)
    folder = loading.demo_folder("draft")
    bench.load_pairs(None, [folder, COPY], bench.BenchOptions())


def _schema(ring: Callable[..., Any], patch: pytest.MonkeyPatch) -> None:
    schemas = object.__new__(JsonSchemas)
    patch.setattr(schemas, "_make", ring, raising=False)
    schemas.processor()


def _chat_template(ring: Callable[..., Any], patch: pytest.MonkeyPatch) -> None:
    loading.encode_prompt(SimpleNamespace(apply_chat_template=ring), [{"role": "user", "content": "The"}])


def _first_use_of_a_device(ring: Callable[..., Any], patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch, "empty", ring)
    loading._device("cpu")


def _import_of_llama_cpp(ring: Callable[..., Any], patch: pytest.MonkeyPatch) -> None:
    patch.delitem(sys.modules, "llama_cpp", raising=False)
    patch.setattr(sys, "meta_path", [SimpleNamespace(find_spec=ring)])
    loading._has_llama()


def _load_of_llama_cpp(ring: Callable[..., Any], patch: pytest.MonkeyPatch) -> None:
    patch.setattr(llama_cpp, "_library", ring)
    llama_cpp.check_in_llama(SimpleNamespace(check=lambda: None), "")  # type: ignore[arg-type]


def _candidates_of_a_drafter(ring: Callable[..., Any], patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PromptLookup, "propose", lambda *_: [[]])
    patch.setattr(Ask, "_cut", ring)
    uag.Assistant.from_prompt_lookup().generate(pair()[0], **INPUTS, **GREEDY)


@pytest.mark.parametrize(
    ("work", "error"),
    [
        *((_row_of_ray, RuntimeError), (_drafts_of_bench, TimeoutError), (_schema, RuntimeError)),
        *((_chat_template, ValueError), (_first_use_of_a_device, RuntimeError), (_import_of_llama_cpp, TimeoutError)),
        *((_load_of_llama_cpp, TimeoutError), (_candidates_of_a_drafter, RuntimeError)),
    ],
)
def test_where_errors_are_explained(work: Any, error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the same type that is no limit's gets a message, or ends one row or draft only."""
    with ringing(error) as ring, monkeypatch.context() as patch:
        with pytest.raises(error) as caught:
            work(lambda *_, **__: ring(), patch)
        assert type(caught.value) is error


def test_a_handler_that_replaces_itself_while_a_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def handle(number: int, _: Any) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise TimeoutError

    with ringing(handler=handle) as ring:
        monkeypatch.setattr(AutoConfig, "from_pretrained", lambda *_, **__: ring())
        with pytest.raises(TimeoutError) as caught:
            loading.load_model(loading.demo_folder("draft"))
    assert type(caught.value) is TimeoutError
