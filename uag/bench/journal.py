"""Measured rows in a file of JSON lines: a second run with the same settings reuses them."""

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from uag.errors import OptionError

Row = dict[str, Any]


class Journal:
    """Rows of measurements, written and reused in groups, because the arms of a group are measured interleaved.

    Rows of other settings, and groups that a killed process left incomplete, stay in the file but are not reused.

    Args:
        path: the file; it may exist.
        settings: everything that the figures depend on, apart from a group's key.

    Attributes:
        num_others: rows in the file that were measured with other settings.

    Raises:
        OptionError: the file was not written by a benchmark.
    """

    def __init__(self, path: Path, settings: Row) -> None:
        self.path, self.num_others = path, 0
        self._settings = digest(settings)
        self._groups: dict[str, list[Row]] = defaultdict(list)
        if path.exists():
            self._read()

    def find(self, key: Row) -> list[Row] | None:
        """Return the rows of a group; None if it is not complete with these settings."""
        rows = self._groups.get(digest(key), [])
        num_rows = rows[-1]["group"]["num_rows"] if rows else 1
        return rows[-num_rows:] if len(rows) >= num_rows else None

    def write(self, key: Row, rows: Sequence[Row]) -> None:
        """Append all rows of a group."""
        group = {"settings": self._settings, "key": digest(key), "num_rows": len(rows)}
        rows = [row | {"group": group} for row in rows]
        with self.path.open("ab", buffering=0) as file:  # one write, so that rows of other processes do not interleave
            file.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
            os.fsync(file.fileno())
        self._groups[digest(key)] += rows

    def _read(self) -> None:
        *lines, incomplete = self.path.read_bytes().split(b"\n")  # a killed process may leave part of a line
        for number, line in enumerate(lines or [incomplete], start=1):
            try:
                row = json.loads(line)
                if row["group"]["settings"] == self._settings:
                    self._groups[row["group"]["key"]].append(row)
                else:
                    self.num_others += 1
            except (ValueError, TypeError, KeyError) as error:
                message = f"{str(self.path)!r}, line {number} was not written by this benchmark: use another file"
                raise OptionError(message) from error
        if incomplete:
            os.truncate(self.path, self.path.stat().st_size - len(incomplete))


def files_digest(name: str) -> str:
    """Return a digest of the sizes and times of a model's files, or of its name if it is not a local path."""
    path = Path(name).expanduser()
    files = sorted(path.iterdir()) if path.is_dir() else [path] if path.is_file() else []
    return digest([name, *((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files)])


def digest(value: Any) -> str:
    """Return a short digest of plain data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]
