"""A lock held by another thread is free in a forked child."""

from __future__ import annotations

import multiprocessing
import threading

import pytest

from uag.hf.trials.locks import ProcessLock


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_finds_the_lock_free() -> None:
    lock, is_held, may_end = ProcessLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            is_held.set()
            may_end.wait(60)

    def enter() -> None:
        with lock:
            pass

    thread = threading.Thread(target=hold)
    thread.start()
    assert is_held.wait(60)
    child = multiprocessing.get_context("fork").Process(target=enter)
    child.start()
    child.join(30)
    may_end.set()
    thread.join(60)
    child.kill()
    assert child.exitcode == 0
