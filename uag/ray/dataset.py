"""Generate text for a Ray dataset, write it to files, and resume where an earlier run stopped."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from uag.errors import OptionError
from uag.ray.rows import BatchGenerator

logger = logging.getLogger("uag")

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
    """

    num_skipped: int = 0
    num_written: int = 0
    num_failed: int = 0


def generate_dataset(
    dataset: Any,
    output: str | Path,
    *,
    num_workers: int | tuple[int, int] = 1,
    batch_size: int = 8,
    worker_options: Mapping[str, Any] | None = None,
    rows_per_part: int = 256,
    generator: type[BatchGenerator] = BatchGenerator,
    id_column: str = "id",
    **generator_options: Any,
) -> Summary:
    """Generate text for every row of a dataset that is not in `output` yet.

    Ray replaces workers that die and reruns their batches. Only this process writes. If it stops, the next run
    generates the rows again that were not written yet, about `rows_per_part` of those that were finished at most.

    Args:
        dataset: a `ray.data.Dataset` with a column of prompts and one of unique ids.
        output: folder for parquet files, on this machine.
        num_workers: number of workers, each with its own pair; (min, max) for an autoscaling pool.
        batch_size: rows that a worker takes at a time, and repeats if it dies.
        worker_options: resources of a worker, as in `map_batches`: `{"num_gpus": 1}`, `{"num_cpus": 2}`... By default
            half a CPU. Workers that claim every CPU leave none to read the dataset, and the run waits forever.
        rows_per_part: rows per file. Increase for fewer files; decrease to lose less when a run stops.
        generator: `BatchGenerator` or a subclass.
        id_column: unique strings or integers.
        generator_options: arguments of `generator`: `target`, `draft`, `max_new_tokens`, `do_sample`...

    Raises:
        ImportError: Ray is not installed.
        OptionError: the dataset or the files in `output` have no column of ids.
    """
    ray = import_ray()
    output = Path(output)
    output.mkdir(parents=True, exist_ok=True)
    _check_column(dataset.columns() or [], id_column, "the dataset")
    done = _written_ids(output, id_column)
    if done:
        dataset = dataset.filter(lambda row: row[id_column] not in done)
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
    summary = Summary(num_skipped=len(done))
    for table in results.iter_batches(batch_size=rows_per_part, batch_format="pyarrow"):
        _write_part(output, table)
        summary.num_written += table.num_rows
        summary.num_failed += table.num_rows - table["generation_error"].null_count
    return summary


def _check_column(columns: list[str], id_column: str, where: str) -> None:
    if id_column not in columns:
        raise OptionError(f"{where} has no column {id_column!r}; it has {', '.join(map(repr, columns))}")


def _written_ids(output: Path, id_column: str) -> set[Any]:
    import pyarrow.dataset

    parts = pyarrow.dataset.dataset(sorted(map(str, output.glob("part-*.parquet"))), format="parquet")
    if not parts.files:
        return set()
    _check_column(parts.schema.names, id_column, f"the output in {str(output)!r}")
    return set(parts.to_table(columns=[id_column])[id_column].to_pylist())


def _write_part(output: Path, table: Any) -> None:
    """Write one file, which is complete or absent even if this process is killed."""
    import pyarrow.parquet

    name = uuid4().hex
    unfinished = output / f".{name}.unfinished"
    pyarrow.parquet.write_table(table, unfinished)
    unfinished.replace(output / f"part-{name}.parquet")


def _warn_of_too_few_cpus(ray: Any, num_workers: int, num_cpus: float) -> None:
    total = ray.cluster_resources().get("CPU", 0.0)
    if total - num_workers * num_cpus < 1.0:
        logger.warning(
            "%d workers with num_cpus=%s each leave less than one of the cluster's %s CPUs to read the dataset: the "
            "run may wait forever. Use fewer workers, or a smaller num_cpus in worker_options.",
            *(num_workers, num_cpus, total),
        )


def import_ray() -> Any:
    """Import and return `ray` with `ray.data`; the error says what to install."""
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ImportError(f"uag.ray needs Ray Data ({error}). Install it: pip install 'ray[data]'") from error
    return ray
