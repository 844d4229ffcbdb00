"""A lock for state that all threads of a process share."""

import os
import threading
from typing import Any


class ProcessLock:
    """A re-entrant lock that is released in a forked child, where the thread that held it does not exist."""

    def __init__(self) -> None:
        self._release()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._release)

    def _release(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: Any) -> None:
        self._lock.release()
