"""What a forked child inherits from other threads' locks and contexts, and what signals leave."""

import ast
import signal
import sys
import threading
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import pytest

from tests.support.forked import elsewhere, forked, interrupted, needs_fork, ringing
from tests.unit.test_layout import FILES
from uag import forks
from uag.gguf import GgufDraft


@needs_fork
def test_a_lock_that_the_forking_thread_holds_stays_its_own() -> None:
    lock = forks.turn()

    def acquired_elsewhere() -> bool:
        found: list[bool] = []
        thread = threading.Thread(target=lambda: found.append(lock.acquire(timeout=0.1)))
        thread.start()
        thread.join()
        lock.release()  # raises if this thread does not hold it
        return found[0]

    with lock:
        assert forked(acquired_elsewhere) is False


@needs_fork
def test_a_fork_waits_until_a_moment_has_passed() -> None:
    lock, steps = forks.lock(), list[int]()

    def change(wait: Callable[[], None]) -> None:
        with lock:
            steps.append(1)
            wait()
            steps.append(2)

    with elsewhere(change):
        forking = threading.Thread(target=lambda: results.append(forked(lambda: list(steps))))
        results: list[Any] = []
        forking.start()
        forking.join(0.5)
        assert not results
    forking.join()
    assert results == [[1, 2]]


@needs_fork
def test_forks_of_several_threads_at_once() -> None:
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append(forked(lambda: "done"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == ["done"] * 8
    with forks._one_fork:
        assert not forks._held


@needs_fork
def test_contexts_of_other_threads_end_in_the_child_and_its_own_go_on() -> None:
    ended: list[str] = []

    def inside(wait: Callable[[], None]) -> None:
        with forks.ending(lambda: ended.append("outer")), forks.ending(lambda: ended.append("inner"), lambda: None):
            wait()

    with elsewhere(inside), forks.ending(lambda: ended.append("own")):
        assert forked(lambda: list(ended)) == ["outer"]
    assert ended == ["own", "inner", "outer"]


@needs_fork
@pytest.mark.skipif(sys.version_info >= (3, 12), reason="cached properties have no locks")
def test_a_cached_property_that_another_thread_computes_is_free_in_the_child() -> None:
    lock = GgufDraft.__dict__["path"].lock
    assert isinstance(GgufDraft.__dict__["path"], cached_property)

    def hold(wait: Callable[[], None]) -> None:
        with lock:
            wait()

    with elsewhere(hold):
        assert forked(lambda: lock.acquire(timeout=1)) is True


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, TimeoutError])
def test_a_signal_leaves_nothing_half_undone(error: type[BaseException]) -> None:
    places: dict[int, bool] = {}

    def undo() -> None:
        for place in list(places):
            places.pop(place)

    def work() -> None:
        with forks.ending(undo):
            for place in range(30):
                places.setdefault(place, True)

    for _ in interrupted(work, error=error):
        assert not places
    assert not forks._endings


def test_an_undo_that_fails_is_not_repeated() -> None:
    """Also while a time limit ends the call, of which the failure's context then tells."""
    runs: list[int] = []

    def undo() -> None:
        runs.append(1)
        raise ValueError("a fault")

    with ringing() as ring, pytest.raises(ValueError, match="a fault"), forks.ending(undo):
        ring()
    assert runs == [1]
    assert not forks._endings


class _Limit:
    def __call__(self, *_: Any) -> None:
        raise TimeoutError

    def end(self, *_: Any) -> None:
        raise TimeoutError


def _end(_: str, *__: Any) -> None:
    raise TimeoutError


def _caused(ring: Callable[[], None]) -> None:
    try:
        ring()
    except TimeoutError as error:
        raise RuntimeError("a forward fails") from error


def _masked(ring: Callable[[], None]) -> None:
    try:
        ring()
    finally:
        raise RuntimeError("its end fails, too")


HANDLERS = {"object": _Limit(), "method": _Limit().end, "partial": partial(_end, "x"), "inner": partial(_Limit())}


@pytest.mark.parametrize("handler", HANDLERS.values(), ids=HANDLERS)
@pytest.mark.parametrize("run", [lambda ring: ring(), _caused, _masked], ids=["raised", "caused", "masked"])
def test_what_a_handler_raises_passes(handler: Any, run: Callable[[Callable[[], None]], None]) -> None:
    def attempt() -> None:
        try:
            run(ring)
        except Exception as error:  # noqa: BLE001 - as around foreign code
            forks.let_pass(error)

    with ringing(handler=handler) as ring, pytest.raises(TimeoutError):
        attempt()


def test_errors_of_a_model_do_not_pass_even_while_a_caller_handles_a_time_limit() -> None:
    def fail(kind: Any) -> None:
        try:
            kind("x")
        except Exception as error:  # noqa: BLE001 - as around foreign code
            forks.let_pass(error)

    kinds = (int, signal.Signals, lambda _: _Limit().end())
    for kind in kinds:
        fail(kind)
    with ringing() as ring:
        try:
            ring()
        except TimeoutError:
            for kind in kinds:
                fail(kind)
    thread = threading.Thread(target=fail, args=(int,))
    thread.start()
    thread.join()


def test_every_lock_is_made_in_one_place() -> None:
    made = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "register_at_fork"}
    for path, tree in FILES.items():
        used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        used |= {name.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for name in node.names}
        assert str(path) == "forks.py" or not used & made, path


@needs_fork
@pytest.mark.parametrize("make", [forks.turn, threading.RLock])
def test_a_lock_that_another_thread_holds_is_free_in_the_child(make: Callable[[], Any]) -> None:
    lock = make()

    def hold(wait: Callable[[], None]) -> None:
        with lock:
            wait()

    with elsewhere(hold):
        is_free = forked(lambda: lock.acquire(timeout=1))
    assert is_free == (make is forks.turn)
