"""A folder of part files, each complete or absent, that records which rows are done."""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from uag.errors import OptionError

FORMATS = ("parquet", "jsonl")


class Parts:
    """The part files of one output; one process writes at a time.

    Args:
        folder: created if it is missing.
        id_column: the column that identifies a row.
        file_format: "parquet" or "jsonl".

    Raises:
        OptionError: the format is unknown, or the folder holds parts of the other one.
    """

    def __init__(self, folder: str | Path, id_column: str = "id", file_format: str = "parquet") -> None:
        if file_format not in FORMATS:
            raise OptionError(f"file_format={file_format!r} must be one of {', '.join(map(repr, FORMATS))}")
        self.folder = Path(folder)
        self.id_column = id_column
        self.file_format = file_format
        self.folder.mkdir(parents=True, exist_ok=True)
        for other in set(FORMATS) - {file_format}:
            if any(self.folder.glob(f"part-*.{other}")):
                raise OptionError(f"{str(self.folder)!r} holds parts in {other}: use file_format={other!r} to resume")
        self._next = 1 + max((int(path.stem.removeprefix("part-")) for path in self.paths()), default=-1)

    def paths(self) -> list[Path]:
        """Return the parts, oldest first."""
        return sorted(self.folder.glob(f"part-*.{self.file_format}"))

    def ids(self) -> set[Any]:
        """Return the ids of all written rows.

        Raises:
            OptionError: the parts have no such column.
        """
        try:
            return {row[self.id_column] for path in self.paths() for row in self._read(path, [self.id_column])}
        except KeyError as error:
            raise OptionError(f"the parts in {str(self.folder)!r} have no column {self.id_column!r}") from error

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield all written rows."""
        for path in self.paths():
            yield from self._read(path, None)

    def write(self, rows: Sequence[dict[str, Any]], schema: Any = None) -> Path:
        """Write rows as the next part; `schema` is their `pyarrow.Schema`, for parquet.

        Raises:
            OptionError: another process writes into this folder, or a value cannot be represented in JSON.
        """
        path = self.folder / f"part-{self._next:06d}.{self.file_format}"
        unfinished = self.folder / f".{path.name}.{os.getpid()}"
        try:
            with unfinished.open("wb") as file:
                self._dump(rows, schema, file)
                file.flush()
                os.fsync(file.fileno())
            # Unlike a rename, a link never replaces a part of another process.
            os.link(unfinished, path)
        except FileExistsError as error:
            raise OptionError(f"{str(path)!r} already exists: another process writes into this folder") from error
        finally:
            unfinished.unlink(missing_ok=True)
        self._next += 1
        return path

    def _dump(self, rows: Sequence[dict[str, Any]], schema: Any, file: Any) -> None:
        if self.file_format == "parquet":
            import pyarrow
            import pyarrow.parquet

            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows), schema=schema), file)
            return
        for row in rows:
            try:
                file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            except TypeError as error:
                raise OptionError(f"row {row[self.id_column]!r}: {error}. Use file_format='parquet'.") from error

    def _read(self, path: Path, columns: list[str] | None) -> list[dict[str, Any]]:
        if self.file_format == "parquet":
            import pyarrow.parquet

            # pyarrow.parquet.read_table would treat the folder's name as a column.
            file = pyarrow.parquet.ParquetFile(path)
            rows: list[dict[str, Any]] = file.read(columns=columns).to_pylist()
            return rows
        with path.open(encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]
