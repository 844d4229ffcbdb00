"""Progress lines on standard error."""

import sys
import time

SECONDS_BETWEEN_LINES = 10.0
"""Increase for shorter logs; decrease to show sooner that the measurement is running."""


class ProgressLines:
    """Prints how many of all `unit` are done, after the `name` of the activity."""

    def __init__(self, name: str, unit: str = "runs") -> None:
        self._name, self._unit, self._shown_s = name, unit, float("-inf")

    def __call__(self, num_done: int, num_runs: int) -> None:
        """Print a line at the first call, at the end, and every `SECONDS_BETWEEN_LINES`."""
        if num_done == num_runs or time.monotonic() - self._shown_s >= SECONDS_BETWEEN_LINES:
            self._shown_s = time.monotonic()
            # print: rich would wrap the line
            print(f"{self._name}: {num_done} of {num_runs} {self._unit}", file=sys.stderr, flush=True)  # noqa: T201
