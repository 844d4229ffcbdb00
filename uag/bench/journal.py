"""Rows of measurements in a file of JSON lines, each written when it is there; a second run goes on with them."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from uag.errors import OptionError

Row = dict[str, Any]


class Journal:
    """A file of rows, in parts that belong together: what was measured in turns is measured anew as a whole.

    A row has the settings that it was measured with. Only rows of the same settings are taken up; those of others stay
    in the file. A part that is torn, since the process ended while it was written, is cut off.

    Args:
        path: the file; it may be there already.
        settings: everything that the figures depend on beyond the part's key, ready for JSON.

    Attributes:
        num_others: rows of other settings that the file held.
        changed: the settings that differ from those of such rows, of the rows that differ in fewest: name -> "there ->
            here".

    Raises:
        OptionError: the file holds something else.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        self.settings: Row = json.loads(json.dumps(dict(settings)))
        self.num_others = 0
        self.changed: dict[str, str] = {}
        self._parts: dict[str, list[Row]] = {}
        if path.exists():
            self._take_up()

    def find(self, key: Mapping[str, Any]) -> list[Row] | None:
        """Return the rows of a part, None where it was not measured with these settings."""
        return self._parts.get(_canonical(key))

    def write(self, key: Mapping[str, Any], rows: Sequence[Row]) -> None:
        """Write all rows of a part, so that they stay whatever happens to this process."""
        whole = [{**row, "part": {"place": place, "num_rows": len(rows)}} for place, row in enumerate(rows)]
        whole[0]["part"] |= {"key": dict(key), "settings": self.settings}
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in whole]
        with self.path.open("ab", buffering=0) as file:  # one write: another process's rows do not come between
            file.write("".join(lines).encode())
            os.fsync(file.fileno())
        self._parts[_canonical(key)] = list(rows)

    def _take_up(self) -> None:
        rows: list[Row] = []
        kept = size = 0
        for number, line in enumerate(self.path.read_bytes().splitlines(keepends=True), start=1):
            size += len(line)
            is_whole = line.endswith(b"\n")
            try:
                row = json.loads(line)
            except ValueError:
                row = {"part": {}} if line.startswith(b"{") and not is_whole else None
            if not isinstance(row, dict) or not (is_whole or "part" in row):
                raise OptionError(f"{str(self.path)!r}, line {number} is no row of a benchmark: name a file of its own")
            if not is_whole:
                break
            rows.append(row)
            part = row.get("part", {"place": 0, "num_rows": 1})
            if part["place"] == part["num_rows"] - 1:
                self._keep(rows)
                rows, kept = [], size
        if kept < self.path.stat().st_size:
            os.truncate(self.path, kept)

    def _keep(self, rows: list[Row]) -> None:
        """Remember a whole part, or count it as another's."""
        part = rows[0].get("part", {"settings": {}})
        there = part["settings"]
        if there == self.settings:
            self._parts[_canonical(part["key"])] = [{k: v for k, v in row.items() if k != "part"} for row in rows]
            return
        self.num_others += len(rows)
        changed = {
            name: f"{_short(there.get(name))} -> {_short(value)}"
            for name, value in sorted(self.settings.items())
            if there.get(name) != value
        }
        if not self.changed or len(changed) <= len(self.changed):
            self.changed = changed


def _canonical(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
