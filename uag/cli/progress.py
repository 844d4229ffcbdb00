"""What a measurement is doing, on standard error: what runs, for how long, and an estimate of the time left."""

import math
import threading
import time
from typing import Self

from uag.cli import common

_EVERY_S = 10.0  # time between two lines where standard error is not a terminal


class ProgressLine:
    """A context in which a thread reports what runs, also during a call of many minutes.

    Call it with the share of the work that is done (0 to 1) and the name of what begins. Until then, models are loaded.
    On a terminal, one line is updated every second. `minutes` bounds the estimate; 0: no bound.
    """

    def __init__(self, minutes: float) -> None:
        self._bound_s = 60 * minutes
        self._start_s = self._call_s = time.perf_counter()
        self._last_s = self._start_s  # of the last line
        self._share, self._name = 0.0, ""
        self._status = common.error_console.status("loading", refresh_per_second=1)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Self:
        self._status.start()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        self._status.stop()

    def __call__(self, share: float, name: str) -> None:
        now = self._call_s = time.perf_counter()
        if not self._name:
            self._start_s, self._last_s = now, now - _EVERY_S
        self._share, self._name = share, name
        self._report()

    def _tick(self) -> None:
        while not self._ended.wait(min(1.0, _EVERY_S)):
            self._report()

    def _report(self) -> None:
        now = time.perf_counter()
        if common.error_console.is_terminal:
            self._status.update(self._text(now))
        elif now - self._last_s >= _EVERY_S:
            self._last_s = now
            common.report(self._text(now))

    def _text(self, now: float) -> str:
        passed_s = now - self._start_s
        if not self._name:
            return f"loading: {_time(passed_s)}"
        bound_s = (self._bound_s or math.inf) - passed_s
        left = f", at most {_time(bound_s)} left" if self._bound_s else ""
        if self._share:
            left_s = (self._call_s - self._start_s) / self._share - passed_s
            left = f", about {_time(min(left_s, bound_s))} left" if left_s > 0 else ""  # a call may take longer
        if bound_s <= 0:
            left = ", this call is the last"
        return f"measuring: {self._share:.0%} after {_time(passed_s)}{left} ({self._name})"


def _time(seconds: float) -> str:
    minutes, seconds = divmod(round(max(seconds, 0.0)), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
