"""Functions run in forked children, in other threads, and with an interrupt or another signal."""

import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def forked(run: Callable[[], Any], timeout: float = 60.0) -> Any:
    """Return what a function returns in a forked child, or "raised ..." or "hangs"."""
    receiver, sender = multiprocessing.Pipe(duplex=False)

    def child() -> None:
        try:
            sender.send(run())
        except BaseException as error:  # noqa: BLE001 - the parent compares it
            sender.send(f"raised {error!r}")

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    try:
        return receiver.recv() if receiver.poll(timeout) else "hangs"
    finally:
        process.kill()
        process.join()


@contextmanager
def elsewhere(run: Callable[[Callable[[], None]], Any]) -> Iterator[None]:
    """Run a function in another thread, which this context begins and ends within: where it calls its argument."""
    inside, leave = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def wait() -> None:
        inside.set()
        assert leave.wait(600)

    def work() -> None:
        try:
            run(wait)
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)
        finally:
            inside.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert inside.wait(60)
        assert not errors, errors
        yield
    finally:
        leave.set()
        thread.join()
    assert not errors, errors


@contextmanager
def ringing(error: type[BaseException] = TimeoutError, handler: Any = None) -> Iterator[Callable[[], None]]:
    """Yield a function that sends a signal, whose handler raises an error, as a caller's time limit does."""

    def handle(*_: Any) -> None:
        raise error

    before = signal.signal(signal.SIGTERM, handler or handle)
    try:
        yield lambda: signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def interrupted(run: Callable[[], Any], step: int = 1, error: type[BaseException] = KeyboardInterrupt) -> Iterator[int]:
    """Run a function again and again, each time with a signal at a later place, until one run has none.

    Python handles signals where a function begins and where one of C has returned, which profilers see. Every `step`-th
    place is taken. An `error` that is an ordinary exception comes from a signal's handler, in the main thread only.
    """
    count = number = 0

    def interrupt() -> None:
        raise error

    def profile(_: Any, event: str, __: Any) -> None:
        nonlocal count
        if event in ("call", "c_return"):
            count += 1
            if count == number:
                ring()

    threshold = gc.get_threshold()
    gc.set_threshold(0)  # Python ignores what is raised in the collector's callbacks, such as hypothesis's
    try:
        for number in range(2, 1 << 30, step):
            count = 0
            try:
                with ringing(error) if issubclass(error, Exception) else nullcontext(interrupt) as ring:
                    sys.setprofile(profile)
                    run()
                    sys.setprofile(None)
            except error:
                sys.setprofile(None)
            else:
                assert number > 20 * step
                return
            yield number
    finally:
        gc.set_threshold(*threshold)
