"""How far a measurement is, on standard error: a bar on a terminal, else a line now and then."""

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from uag.bench.measuring import Place

SECONDS_BETWEEN_LINES = 20.0
"""Fewer fill a log; more leave its reader in doubt whether anything goes on."""


class Progress:
    """Shows each `Place` that it is given; a context manager.

    Args:
        name: what is being measured.
        file: where it is shown.
        clock: seconds.
    """

    def __init__(self, name: str, file: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._file = sys.stderr if file is None else file
        self._clock = clock
        self._began_s = self._shown_s = clock()
        self._bar: Bar | None = None
        if self._file.isatty():
            columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
            self._bar = Bar(*columns, console=Console(file=self._file), transient=True)
            self._task = self._bar.add_task(name, total=None)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, place: Place) -> None:
        """Show a place, on a terminal at once."""
        where = f"prompts {place.group} of {place.num_groups}" + (f", {place.arm}" if place.arm else "")
        if self._bar is not None:
            description = f"{self._name}, {where}"
            self._bar.update(self._task, description=description, completed=place.num_done, total=place.num_runs)
            return
        now_s, num_measured = self._clock(), place.num_done - place.num_known
        if now_s - self._shown_s < SECONDS_BETWEEN_LINES or not num_measured:
            return
        self._shown_s = now_s
        passed_s = now_s - self._began_s
        left_s = passed_s / num_measured * (place.num_runs - place.num_done)
        # print: rich would wrap the line
        line = f"{self._name}: {place.num_done} of {place.num_runs} runs ({where}), {_duration(passed_s)}"
        print(f"{line}, about {_duration(left_s)} left", file=self._file, flush=True)


def _duration(seconds: float) -> str:
    """Return hours, minutes or seconds in words.

    >>> _duration(42.4), _duration(150), _duration(7300)
    ('42 s', '2 min', '2 h 1 min')
    """
    minutes = int(seconds) // 60
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
