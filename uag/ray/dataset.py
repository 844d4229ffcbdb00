"""Generate text for a Ray dataset, write it to files, and resume where an earlier run stopped."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uag.errors import OptionError
from uag.ray.parts import Parts
from uag.ray.rows import BatchGenerator

logger = logging.getLogger("uag")

_MAX_WAIT_S = 60.0
"""Seconds after which an incomplete part is written. Increase for fewer files; decrease to lose less in a crash."""

_NUM_CPUS = 0.5
"""CPUs that a worker claims by default. Increase to run fewer workers per machine; decrease to leave CPUs to the tasks
that read the dataset."""


@dataclass
class Summary:
    """Counts of a run.

    Attributes:
        num_skipped: rows that earlier runs wrote.
        num_written: rows that this run wrote, failed ones included.
        num_failed: rows of this run with a `generation_error` instead of a text.
        num_repeated: rows skipped because another row had the same id.
    """

    num_skipped: int = 0
    num_written: int = 0
    num_failed: int = 0
    num_repeated: int = 0


def generate_dataset(
    dataset: Any,
    output: str | Path,
    *,
    num_workers: int | tuple[int, int] = 1,
    batch_size: int = 8,
    worker_options: Mapping[str, Any] | None = None,
    file_format: str = "parquet",
    rows_per_part: int = 256,
    on_progress: Callable[[Summary], None] | None = None,
    generator: type[BatchGenerator] = BatchGenerator,
    id_column: str = "id",
    **generator_options: Any,
) -> Summary:
    """Generate text for every row of a dataset that is not in `output` yet.

    Ray replaces workers that die and reruns their batches. Only this process writes, and a row's result depends only on
    the row, so every row is written once, with the same result. If this process dies, the next run regenerates at most
    `rows_per_part` rows or one minute of work.

    Args:
        dataset: a `ray.data.Dataset` with a column of prompts and one of unique ids.
        output: folder for the part files, on this machine.
        num_workers: number of workers, each with its own pair; (min, max) for an autoscaling pool.
        batch_size: rows that a worker takes at a time, and repeats if it dies.
        worker_options: resources of a worker, as in `map_batches`: `{"num_gpus": 1}`, `{"num_cpus": 2}`... By default
            half a CPU. Workers that claim every CPU leave none to read the dataset, and the run waits forever.
        file_format: "parquet", or "jsonl" for JSON lines.
        rows_per_part: maximum number of rows in a part file; a part is also written after a minute.
        on_progress: called after every batch; rows count as written even if their part is not yet on disk.
        generator: `BatchGenerator` or a subclass.
        id_column: unique strings or integers.
        generator_options: arguments of `generator`: `target`, `draft`, `max_new_tokens`, `do_sample`...

    Raises:
        ImportError: Ray is not installed.
        OptionError: a column is missing, or the folder holds parts of another format or without ids.
    """
    ray = import_ray()
    parts = Parts(output, id_column, file_format)
    columns = dataset.columns() or []
    if id_column not in columns:
        raise OptionError(f"the dataset has no column {id_column!r}; it has {', '.join(map(repr, columns))}")
    done = parts.ids()
    if done:
        dataset = dataset.map_batches(_without(ray, done, id_column), batch_format="pyarrow")
    min_size, max_size = (num_workers, num_workers) if isinstance(num_workers, int) else num_workers
    options = {"num_cpus": _NUM_CPUS, **(worker_options or {})}
    _warn_of_too_few_cpus(ray, min_size, options["num_cpus"])
    # A task runs a whole block and returns its rows at the end, so blocks of one batch lose and delay the fewest rows.
    results = dataset.repartition(target_num_rows_per_block=batch_size).map_batches(
        generator,
        fn_constructor_kwargs={"id_column": id_column, **generator_options},
        batch_size=batch_size,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(min_size=min_size, max_size=max_size),
        **options,
    )
    writer = _Writer(parts, done, rows_per_part)
    try:
        for table in results.iter_batches(batch_size=None, batch_format="pyarrow"):
            writer.add(table)
            if on_progress is not None:
                on_progress(writer.summary)
    finally:
        writer.finish()
    return writer.summary


@dataclass
class _Writer:
    """Writes rows into parts of at most `rows_per_part`, each id once; `done` holds the ids written so far."""

    parts: Parts
    done: set[Any]
    rows_per_part: int
    waiting: list[dict[str, Any]] = field(default_factory=list)
    schema: Any = None
    written_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.summary = Summary(num_skipped=len(self.done))

    def add(self, table: Any) -> None:
        """Add a batch of results, and write the parts that are full or due."""
        self.schema, summary = table.schema, self.summary
        for row in table.to_pylist():
            row_id = row[self.parts.id_column]
            if row_id in self.done:
                summary.num_repeated += 1
                continue
            self.done.add(row_id)
            self.waiting.append(row)
            summary.num_written += 1
            summary.num_failed += row["generation_error"] is not None
        is_due = time.monotonic() - self.written_s > _MAX_WAIT_S
        while len(self.waiting) >= self.rows_per_part or (is_due and self.waiting):
            self._write()

    def finish(self) -> None:
        """Write the remaining rows."""
        if self.waiting:
            self._write()
        if self.summary.num_repeated:
            logger.warning("%d rows had the id of another row and were skipped", self.summary.num_repeated)

    def _write(self) -> None:
        self.parts.write(self.waiting[: self.rows_per_part], self.schema)
        del self.waiting[: self.rows_per_part]
        self.written_s = time.monotonic()


def _warn_of_too_few_cpus(ray: Any, num_workers: int, num_cpus: float) -> None:
    total = ray.cluster_resources().get("CPU", 0.0)
    if total - num_workers * num_cpus < 1.0:
        logger.warning(
            "%d workers with num_cpus=%s each leave less than one of the cluster's %s CPUs to read the dataset: the "
            "run may wait forever. Use fewer workers, or a smaller num_cpus in worker_options.",
            *(num_workers, num_cpus, total),
        )


def _without(ray: Any, done: set[Any], id_column: str) -> Callable[[Any], Any]:
    """Return a function that removes the rows of a batch whose ids are done."""
    shared = ray.put(frozenset(done))  # once per machine, not once per task

    def keep(table: Any) -> Any:
        import pyarrow

        ids = ray.get(shared)
        return table.filter(pyarrow.array([row_id not in ids for row_id in table[id_column].to_pylist()], "bool"))

    return keep


def import_ray() -> Any:
    """Import and return `ray` with `ray.data`; the error says what to install."""
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ImportError(f"uag.ray needs Ray Data ({error}). Install it: pip install 'ray[data]'") from error
    return ray
