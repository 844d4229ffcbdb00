"""The clock of passes leaves out the time in which the thread waited for a free core."""

import threading
import time
from pathlib import Path

import pytest

from uag.lookahead import clock


def test_time_spent_waiting_for_a_core_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    counters, found = tmp_path / "schedstat", []
    monkeypatch.setattr(clock, "_COUNTERS", str(counters))
    monkeypatch.setattr(time, "perf_counter", lambda: 100.0)

    def read() -> None:
        for waited_ns in (2_000_000_000, 5_500_000_000):
            counters.write_text(f"123456 {waited_ns} 7\n")
            found.append(clock.now())

    thread = threading.Thread(target=read)  # each thread opens its own counters
    thread.start()
    thread.join()
    assert found == [98.0, 94.5]


def test_a_wait_between_two_readings_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    times, waits = iter((100.0, 108.0, 108.0)), iter((2.0, 9.0, 9.0))  # preempted for 7 seconds after the first time
    monkeypatch.setattr(clock._Counters, "waited_s", lambda _: next(waits))
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    assert clock.now() == 99.0


def test_without_counters_the_wall_clock_serves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(clock, "_COUNTERS", str(tmp_path / "missing"))
    assert clock._Counters().waited_s() == 0.0
