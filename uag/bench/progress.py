"""How far a measurement is: a line now and then on standard error."""

import sys
import time

SECONDS_BETWEEN_LINES = 10.0
"""Increase for shorter logs; decrease to show sooner that the measurement is running."""


class Progress:
    """Prints how many runs are done; `name` is what is measured."""

    def __init__(self, name: str) -> None:
        self._name, self._shown_s = name, time.monotonic()

    def __call__(self, num_done: int, num_runs: int) -> None:
        """Print a line if the last one is old enough."""
        if time.monotonic() - self._shown_s >= SECONDS_BETWEEN_LINES:
            self._shown_s = time.monotonic()
            # print: rich would wrap the line
            print(f"{self._name}: {num_done} of {num_runs} runs", file=sys.stderr, flush=True)  # noqa: T201
