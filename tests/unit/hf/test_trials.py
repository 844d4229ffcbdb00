"""Trials of a model run once, and leave its modules and the random state unchanged."""

import gc
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.forked import interrupted, ringing
from uag import forks
from uag.hf import trials
from uag.hf.cache import recorded
from uag.hf.trials import DrawsError, once, without_trace


class Stateful(nn.Module):
    device = torch.device("cpu")

    def __init__(self) -> None:
        super().__init__()
        self.table: torch.Tensor = nn.Buffer(torch.zeros(3))
        self.loose = torch.zeros(2)
        self.length: torch.Tensor | int = 4
        self.lengths, self.memo = [1], {"a": 1}
        whole = torch.ones(3, 3)
        parts = whole[:2], whole[2:], torch.ones(1), torch.ones(1)  # two share a storage
        self.weight, self.scale, self.own, self.listed = (nn.Parameter(part, requires_grad=False) for part in parts)

    def forward(self, size: int) -> torch.Tensor:
        self.made = size
        self.weight.div_(2)
        self.weight[0].add_(1)
        self.scale.add_(1)
        torch._foreach_add_([self.listed], 1)
        torch.add(self.own, 1, out=self.own.data)
        self.lengths.append(size)
        self.memo["b"] = self.memo.pop("a") + size
        self._buffers["made too"] = torch.zeros(size)
        self.length = torch.tensor(size)
        self.table.add_(1.0)
        self.table = torch.full((5,), 2.0)
        self.loose.mul_(0).add_(7.0)
        return torch.zeros(size)


def test_attributes_and_buffers_are_put_back() -> None:
    model, state = Stateful(), torch.get_rng_state()
    table, loose, lengths, memo = model.table, model.loose, model.lengths, model.memo
    with without_trace(model):
        model(3)
        assert model.table.shape == (5,)
    assert [model.table is table, model.loose is loose, model.lengths is lengths, model.memo is memo] == [True] * 4
    assert (lengths, memo, list(model._buffers), hasattr(model, "made")) == ([1], {"a": 1}, ["table"], False)
    assert (model.weight.tolist(), model.scale.tolist(), model.own.item(), model.listed.item()) == (
        [[1.0] * 3] * 2,
        [[1.0] * 3],
        1.0,
        1.0,
    )
    assert (table.tolist(), loose.tolist(), model.length) == ([0.0, 0.0, 0.0], [0.0, 0.0], 4)
    assert torch.equal(torch.get_rng_state(), state)


def test_functions_that_another_thread_places_or_removes_during_a_trial_stay() -> None:
    """Fast products are `forward` attributes of layers while a call runs."""
    placed, removed = Stateful(), Stateful()
    vars(removed)["forward"] = print
    model = nn.Sequential(placed, removed)
    vars(model)["device"] = torch.device("cpu")
    with without_trace(model):
        vars(placed)["forward"] = print
        del vars(removed)["forward"]
        hook = placed.register_forward_hook(print)
        placed.weight = nn.Parameter(torch.zeros(1))  # as where weights are moved for a pass
    assert placed._forward_hooks == {hook.id: print}
    assert placed.weight.tolist() == [0.0]
    assert vars(placed)["forward"] is print
    assert "forward" not in vars(removed)


def describe(why: str) -> str:
    return f"failed ({why})"


def test_an_experiment_runs_once_for_each_key() -> None:
    model, runs = Stateful(), []

    def run() -> str:
        runs.append(torch.is_grad_enabled())
        model(2)
        return f"run {len(runs)}"

    assert [once(model, "a", run, describe, key) for key in (1, 1, 2, 2)] == ["run 1", "run 1", "run 2", "run 2"]
    assert once(model, "a", run, describe, 1) == "run 1"
    assert once(model, "b", run, describe) == "run 3"
    assert runs == [False] * 3
    assert model.length == 4
    for key in range(3, 10):  # the first answers are forgotten
        once(model, "a", run, describe, key)
    assert once(model, "a", run, describe, 2) == "run 2"
    assert once(model, "a", run, describe, 1) == "run 11"


NO_MEMORY: list[Exception] = [torch.OutOfMemoryError("too large")]
NO_MEMORY += [RuntimeError("CUBLAS_STATUS_ALLOC_FAILED"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]


@pytest.mark.parametrize("error", [KeyError, ValueError, NotImplementedError, ZeroDivisionError, *NO_MEMORY])
def test_whatever_a_trial_raises_is_an_answer_and_it_runs_once_more(error: Any) -> None:
    """One that finds no memory runs again and again."""

    def run() -> str:
        raise error if error in NO_MEMORY else error("too\n  bad")

    failed, model = f"failed ({getattr(error, '__name__', type(error).__name__)}: ", Stateful()
    assert once(model, "a", run, describe).startswith(failed)
    assert once(model, "a", lambda: "another run", describe) == "another run"
    assert once(model, "b", run, describe).startswith(failed)
    assert once(model, "b", run, describe).startswith(failed)
    again = once(model, "b", lambda: "another run", describe)
    assert again == "another run" if error in NO_MEMORY else again.startswith(failed)


def test_a_callers_time_limit_is_no_answer() -> None:
    model = Stateful()
    with ringing() as ring, pytest.raises(TimeoutError):
        once(model, "a", lambda: str(ring()), describe)
    assert once(model, "a", lambda: "another run", describe) == "another run"


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers")
def test_a_timer_that_rings_during_a_trial_ends_the_call() -> None:
    def ring(*_: Any) -> None:
        raise TimeoutError

    def run() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        time.sleep(60)

    before = signal.signal(signal.SIGALRM, ring)
    try:
        with pytest.raises(TimeoutError):
            once(Stateful(), "a", run, print)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
def test_an_interrupt_leaves_the_callers_stance(error: type[BaseException]) -> None:
    def work() -> None:
        with trials._eagerly():
            assert torch._dynamo.eval_frame._stance.stance == "force_eager"

    with torch.compiler.set_stance("eager_on_recompile"):
        stance = torch._dynamo.eval_frame._stance
        for _ in interrupted(work, error=error):
            assert torch._dynamo.eval_frame._stance is stance
            assert not trials._eager_trials
            assert not forks._endings


def test_an_interrupt_leaves_the_collector_on() -> None:
    def work() -> None:
        for _ in range(9):
            with recorded._without_collection():
                pass

    for _ in interrupted(work):
        is_on = gc.isenabled()
        gc.enable()
        assert is_on


def test_the_mode_that_another_thread_sets_during_a_trial_stays() -> None:
    model = Stateful()
    with without_trace(model):
        model.eval()
    assert not model.training


def test_a_long_trial_delays_only_its_own_model() -> None:
    long, other = Stateful(), Stateful()
    has_begun, may_end = threading.Event(), threading.Event()

    def wait() -> str:
        has_begun.set()
        return str(may_end.wait(60))

    stance = torch._dynamo.eval_frame._stance
    results: list[str] = []
    threads = [threading.Thread(target=lambda: results.append(once(long, "a", wait, describe))) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert has_begun.wait(60)
    asked = threading.Thread(target=lambda: results.append(once(other, "a", lambda: "done", describe)), daemon=True)
    asked.start()
    asked.join(60)
    assert results == ["done"]
    assert torch._dynamo.eval_frame._stance.stance == "force_eager"
    may_end.set()
    for thread in threads:
        thread.join()
    assert results == ["done", "True", "True"]
    assert torch._dynamo.eval_frame._stance is stance


ONES = torch.ones(1, 1, 4, 8)
DRAWS: dict[str, Callable[[], Any]] = {
    "default generator": lambda: torch.rand(3),
    "own generator": lambda: torch.rand(3, generator=torch.Generator()),
    "in place": lambda: torch.empty(3).exponential_(),
    "multinomial": lambda: torch.multinomial(torch.ones(3), 1),
    "dropout": lambda: nn.functional.dropout(torch.ones(3), 0.5, training=True),
    "attention": lambda: nn.functional.scaled_dot_product_attention(ONES, ONES, ONES, dropout_p=0.5),
}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_trial_that_draws_raises_before_the_draw(draw: Callable[[], Any], mode: Any) -> None:
    before = torch.get_rng_state()
    with without_trace(Stateful()), mode(), pytest.raises(DrawsError, match="draws random numbers"):
        draw()
    assert torch.equal(torch.get_rng_state(), before)


def test_trial_with_dropout_switched_off_is_allowed() -> None:
    with without_trace(Stateful()):
        assert nn.functional.dropout(ONES, 0.5, training=False).sum() == 32
        assert nn.functional.dropout(ONES, 0.0, training=True).sum() == 32
        assert nn.functional.scaled_dot_product_attention(ONES, ONES, ONES).sum() == 32


def test_an_answer_is_there_while_another_model_is_tried() -> None:
    """Also in a forked child, where the other thread's trial never ends."""
    model = Stateful()
    assert once(model, "a", lambda: "yes", describe) == "yes"
    answers: list[str] = []

    def trial() -> str:
        thread = threading.Thread(target=lambda: answers.append(once(model, "a", lambda: "no", describe)))
        thread.start()
        thread.join(10)
        return ", ".join(answers)  # those given before the trial ends

    assert once(Stateful(), "b", trial, describe) == "yes"


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("too large"),
        RuntimeError("CUBLAS_STATUS_ALLOC_FAILED"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_trial_that_runs_out_of_memory_runs_again(error: Exception) -> None:
    def run() -> str:
        raise error

    model = Stateful()
    assert once(model, "a", run, describe) == f"failed ({type(error).__name__}: {error})"
    assert once(model, "a", lambda: "another run", describe) == "another run"
