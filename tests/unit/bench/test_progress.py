"""How far a measurement is: lines now and then where no terminal is, without control characters."""

from __future__ import annotations

import io

from uag.bench import Place, Progress
from uag.bench.progress import SECONDS_BETWEEN_LINES


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_come_now_and_then() -> None:
    file, now = io.StringIO(), [0.0]
    with Progress("measuring", file, lambda: now[0]) as progress:
        progress(Place(20, 100, 20, 1, 5))
        for num_done in range(21, 101):
            now[0] += SECONDS_BETWEEN_LINES / 2
            progress(Place(num_done, 100, 20, 2, 5, "uag"))
    lines = file.getvalue().splitlines()
    assert len(lines) == 40
    assert lines[0] == "measuring: 22 of 100 runs (prompts 2 of 5, uag), 20 s, about 13 min left"
    assert lines[-1].endswith("about 0 s left")
    assert file.getvalue().replace("\n", "").isprintable()


def test_quick_measurements_and_known_groups_write_nothing() -> None:
    file, now = io.StringIO(), [0.0]
    with Progress("measuring", file, lambda: now[0]) as progress:
        now[0] = 2 * SECONDS_BETWEEN_LINES
        progress(Place(20, 100, 20, 1, 5))
    assert file.getvalue() == ""


def test_a_terminal_gets_a_bar_that_goes_away() -> None:
    file = Terminal()
    with Progress("measuring", file) as progress:
        progress(Place(7, 100, 0, 1, 5, "uag"))
    assert "prompts 1 of 5, uag" in file.getvalue()
    assert "7/100" in file.getvalue()
    assert file.getvalue().endswith("\x1b[2K")
