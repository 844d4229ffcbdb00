"""A child forked while another thread is in a call writes what plain decoding does, and inherits none of the call."""

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from transformers import GenerationMixin, LogitsProcessor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import uag
from tests.support.calls import GREEDY, PROMPTS, SAMPLED, assistant_of, draft_options, left_padded, pair, seeded
from tests.support.forked import elsewhere, forked, needs_fork
from tests.support.grids import covering
from tests.support.kernels import needs_kernels
from tests.support.models import tiny_target
from uag.drafting import PromptLookup

pytestmark = [needs_fork, pytest.mark.usefixtures("detached")]

INPUTS = left_padded(PROMPTS[:1])
Doors = dict[str, Callable[[Any], Callable[..., Any]]]


class Waits(LogitsProcessor):
    def __init__(self, wait: Callable[[], None]) -> None:
        self.waits = [wait]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if input_ids.shape[1] > len(PROMPTS[0]) + 4 and self.waits:
            self.waits.pop()()
        return scores


class WaitsInside(nn.Module):
    """A layer in which the first pass waits, so in the first trial; `state` is what a pass leaves."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.state, self.table = inner, 0, nn.Buffer(torch.zeros(2))
        self.waits: deque[Callable[[], None]] = deque()  # a trial would put back what a list held

    def forward(self, x: torch.Tensor) -> Any:
        self.state = x.shape[1]
        self.table.add_(1.0)
        if self.waits:
            self.waits.pop()()
        return self.inner(x)


def called(assistant: Any) -> Callable[[Any], Callable[..., Any]]:
    return lambda target: partial(assistant().generate, target)


def attached(target: Any) -> Callable[..., Any]:
    uag.attach(target, None, drafter=PromptLookup())
    generate: Callable[..., Any] = target.generate
    return generate


def installed(target: Any) -> Callable[..., Any]:
    uag.install()
    return lambda **given: target.generate(**given, **draft_options())


DOORS: Doors = {
    "with draft": called(assistant_of), "prompt lookup": called(uag.Assistant.from_prompt_lookup),
    "attached": attached, "installed": installed,
}  # fmt: skip
EVERY_DOOR = pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)


@pytest.fixture(autouse=True)
def _uninstalled() -> Iterator[None]:
    yield
    uag.uninstall()


@needs_kernels
@covering("door, options", DOORS.values(), (GREEDY, SAMPLED), strength=1)
def test_a_fork_in_another_threads_call(door: Callable[[Any], Callable[..., Any]], options: dict[str, Any]) -> None:
    target = tiny_target("llama")[0]
    expected = seeded(3, target.generate, **INPUTS, **options).tolist()
    generate = door(target)
    generate(**INPUTS, **options)

    def in_child() -> Any:
        left = [name for name, module in target.named_modules() if "forward" in vars(module)]
        left += ["attention"] if "get_interface" in vars(ALL_ATTENTION_FUNCTIONS) else []
        return seeded(3, generate, **INPUTS, **options).tolist(), left

    with elsewhere(lambda wait: generate(**INPUTS, **options, logits_processor=[Waits(wait)])):
        assert any("forward" in vars(module) for module in target.modules())
        assert forked(in_child) == (expected, [])
    assert seeded(3, generate, **INPUTS, **options).tolist() == expected


@EVERY_DOOR
def test_a_fork_in_another_threads_trial(door: Callable[[Any], Callable[..., Any]]) -> None:
    target = tiny_target("llama")[0]
    target.model.norm = layer = WaitsInside(target.model.norm)
    expected = target.generate(**INPUTS, **GREEDY).tolist()
    layer.state, stance = -1, torch._dynamo.eval_frame._stance
    layer.table.zero_()
    generate = door(target)

    def begin(wait: Callable[[], None]) -> None:
        layer.waits.append(wait)
        generate(**INPUTS, **GREEDY)

    def in_child() -> Any:
        left = layer.state, layer.table.tolist(), torch._dynamo.eval_frame._stance == stance
        return left, nn.Module.__setattr__.__name__, generate(**INPUTS, **GREEDY).tolist()

    with elsewhere(begin):
        found = forked(in_child)
        assert torch._dynamo.eval_frame._stance != stance
    assert found == ((-1, [0.0, 0.0], True), "__setattr__", expected)


def test_a_fork_while_another_thread_creates_the_assistant_of_a_pair() -> None:
    target, draft = tiny_target("llama")[0], tiny_target("llama")[0]
    expected = target.generate(**INPUTS, **GREEDY).tolist()
    draft.model.norm = layer = WaitsInside(draft.model.norm)
    uag.install()

    def begin(wait: Callable[[], None]) -> None:
        layer.waits.append(wait)
        target.generate(**INPUTS, **GREEDY, assistant_model=draft)

    with elsewhere(begin):
        assert forked(lambda: target.generate(**INPUTS, **GREEDY, assistant_model=draft).tolist()) == expected


def test_a_fork_while_another_thread_drafts_with_a_draft_in_training_mode() -> None:
    """The child's draft is in training mode again."""
    target, _, draft, _ = pair()
    draft.train()
    assistant, waits = assistant_of(), list[Callable[[], None]]()
    hook = draft.model.register_forward_pre_hook(lambda *_: waits.pop()() if waits else None)

    def begin(wait: Callable[[], None]) -> None:
        waits.append(wait)
        assistant.generate(target, **INPUTS, **GREEDY)

    try:
        expected = assistant.generate(target, **INPUTS, **GREEDY).tolist()
        with elsewhere(begin):
            assert not draft.training
            is_training, ids = forked(lambda: (draft.training, assistant.generate(target, **INPUTS, **GREEDY).tolist()))
        assert (is_training, ids) == (True, expected)
        assert draft.training
    finally:
        hook.remove()
        draft.eval()


def test_a_fork_inside_a_call_goes_on_with_the_call() -> None:
    target = pair()[0]
    expected = target.generate(**INPUTS, **GREEDY).tolist()
    assistant, results = assistant_of(), list[Any]()
    processor = Waits(lambda: results.append(forked(nested)))

    def nested() -> Any:
        return [assistant.generate(target, **INPUTS, **GREEDY).tolist() for _ in range(2)]

    assert assistant.generate(target, **INPUTS, **GREEDY, logits_processor=[processor]).tolist() == expected
    assert results == [[expected] * 2]
    assert not hasattr(GenerationMixin.generate, "__uag_original__")
