"""Measures passes without the time in which a thread waited for a free core, which Linux counts."""

import os
import threading
import time

from uag import forks

_COUNTERS = "/proc/thread-self/schedstat"  # nanoseconds that the calling thread ran, and that it waited to run


class _Counters:
    """The open counters of one thread, closed when the thread ends."""

    def __init__(self) -> None:
        try:
            self._file = os.open(_COUNTERS, os.O_RDONLY) if hasattr(os, "pread") else -1
        except OSError:  # not Linux, or a kernel without them
            self._file = -1

    def waited_s(self) -> float:
        return 1e-9 * int(os.pread(self._file, 64, 0).split()[1]) if self._file >= 0 else 0.0

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)


_thread = threading.local()
forks.in_child(lambda: vars(_thread).clear())  # the file would still count for the parent


def now() -> float:
    """Return a time in seconds that stands still while this thread waits for a free core."""
    counters = getattr(_thread, "counters", None)
    if counters is None:
        counters = _thread.counters = _Counters()
    waited_s: float = counters.waited_s()
    while True:
        time_s, before_s, waited_s = time.perf_counter(), waited_s, counters.waited_s()
        if waited_s == before_s:  # or it waited between the two, which the time may lack
            return time_s - waited_s
