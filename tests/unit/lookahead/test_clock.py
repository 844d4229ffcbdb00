"""The clock of passes: time that other programs take does not count."""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from uag.lookahead import clock

COUNTERS = Path("/proc/thread-self/schedstat")


def spin(seconds: float) -> None:
    """Compute for this long, measured in the time that the thread really runs."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_time_asleep_or_computing_counts() -> None:
    before = clock.now()
    time.sleep(0.05)
    spin(0.05)
    assert clock.now() - before >= 0.09


@pytest.mark.skipif(not COUNTERS.exists(), reason="the system does not count how long threads wait")
def test_time_waiting_for_a_core_does_not_count() -> None:
    """Another process competes for the only core that this thread may use."""
    cores = os.sched_getaffinity(0)
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            os.sched_setaffinity(0, {min(cores)})
            os.sched_setaffinity(other.pid, {min(cores)})
            time.sleep(0.5)  # until it has started
            wall, ours = time.perf_counter(), clock.now()
            spin(0.3)
            wall, ours = time.perf_counter() - wall, clock.now() - ours
        finally:
            os.sched_setaffinity(0, cores)
            other.kill()
    assert ours == pytest.approx(0.3, rel=0.1)
    assert wall > 1.3 * ours


def test_each_thread_has_counters_of_its_own() -> None:
    clock.now()
    mine = clock._thread.counters
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: (clock.now(), clock._thread.counters)[1]).result() is not mine


def test_without_counters_the_wall_clock_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "_COUNTERS", "/nowhere/schedstat")
    monkeypatch.setattr(clock, "_thread", threading.local())
    assert clock.now() == pytest.approx(time.perf_counter(), abs=0.05)
