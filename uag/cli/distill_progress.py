"""How far a distillation is, on standard error: a bar for each stage on a terminal, else a line now and then."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

_WORDS = {"writing": "the target writes", "training": "the draft learns"}

_SECONDS_BETWEEN_LINES = 20.0
"""Fewer fill a log; more leave its reader in doubt whether anything goes on."""


@contextmanager
def shown_progress(console: Console, *, is_shown: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Yield what to call with a stage, what is done of it, and what there is in all."""
    shown_at: dict[str, float] = {}

    def print_line(stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if done == total or now - shown_at.get(stage, 0.0) > _SECONDS_BETWEEN_LINES:
            shown_at[stage] = now
            console.print(f"{_WORDS[stage]}: {done} of {total}", highlight=False)

    if not (is_shown and console.is_terminal):
        yield print_line if is_shown else lambda *_: None
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, TaskID] = {}

        def on_progress(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(_WORDS[stage], total=total, completed=done)
            bars.update(tasks[stage], total=total, completed=done)

        yield on_progress
