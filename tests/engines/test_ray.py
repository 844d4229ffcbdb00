"""Ray Data on two raylets, with killed workers and stopped runs: every row is written once and equals plain greedy."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ray = pytest.importorskip("ray", reason="needs Ray Data: pip install 'ray[data]'")

import pyarrow.parquet  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402
from ray.data import ActorPoolStrategy, from_items, read_parquet  # noqa: E402

import uag.ray  # noqa: E402
from uag.errors import OptionError  # noqa: E402
from uag.loading import demo_folder, load_pair  # noqa: E402

pytestmark = pytest.mark.engines

NUM_TOKENS = 8
# The demo's draft (two layers) as target and draft: these tests check rows, not speed.
PAIR: dict[str, Any] = {"target": demo_folder("draft"), "draft": demo_folder("draft"), "max_new_tokens": NUM_TOKENS}
# Raylets have three CPUs: each fits one worker and Ray's other tasks.
WORKERS: dict[str, Any] = {"num_workers": 2, "worker_options": {"num_cpus": 2}}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[Any]:
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    nodes = Cluster()
    for _ in range(2):
        nodes.add_node(num_cpus=3, object_store_memory=100 * 2**20)
    ray.init(address=nodes.address, log_to_driver=False)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


def rows(num: int) -> list[dict[str, Any]]:
    return [{"id": f"row {index}", "prompt": f"def f{index}(a, b):\n"} for index in range(num)]


@pytest.fixture(scope="module")
def expected() -> dict[str, list[int]]:
    """Plain greedy decoding of each row alone."""
    pair = load_pair(PAIR["target"], PAIR["draft"], dtype="float32", device="cpu")
    found = {}
    for row in rows(40):
        inputs = pair.target_tokenizer(row["prompt"], return_tensors="pt")
        ids = pair.target.generate(**inputs, max_new_tokens=NUM_TOKENS, do_sample=False, pad_token_id=0)[0].tolist()
        found[row["id"]] = ids[inputs["input_ids"].shape[1] :]
    return found


def check(folder: Path, num: int, expected: dict[str, list[int]]) -> None:
    """Every row exactly once, and equal to plain greedy decoding."""
    written = read_parquet(str(folder)).take_all()
    assert sorted(row["id"] for row in written) == sorted(row["id"] for row in rows(num))
    for row in written:
        assert row["generation_error"] is None
        assert list(row["generated_ids"]) == expected[row["id"]], row["id"]


def dying(folder: Path, num_deaths: int) -> type[uag.ray.BatchGenerator]:
    """Return a generator whose process is killed in the middle of a batch, a given number of times over all workers."""

    class Dying(uag.ray.BatchGenerator):
        num_batches = 0

        def generate(self, batch: Any) -> Any:
            (folder / f"node-{ray.get_runtime_context().get_node_id()}").touch()
            self.num_batches += 1
            if self.num_batches == 2:
                for death in range(num_deaths):
                    try:
                        (folder / f"death-{death}").touch(exist_ok=False)
                    except FileExistsError:
                        continue
                    super().generate(batch[:1])
                    os.kill(os.getpid(), signal.SIGKILL)
            return super().generate(batch)

    return Dying


def test_workers_killed_in_the_middle_of_a_batch(tmp_path: Path, expected: dict[str, list[int]]) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    summary = uag.ray.generate_dataset(
        from_items(rows(40)),
        tmp_path / "out",
        batch_size=4,
        rows_per_part=7,
        generator=dying(marks, 2),
        **WORKERS,
        **PAIR,
    )
    assert len(list(marks.glob("death-*"))) == 2
    assert len(list(marks.glob("node-*"))) == 2, "both raylets had work"
    assert (summary.num_written, summary.num_failed) == (40, 0)
    check(tmp_path / "out", 40, expected)


def test_a_run_that_stopped_is_gone_on_with(tmp_path: Path, expected: dict[str, list[int]]) -> None:
    class Stopping(uag.ray.BatchGenerator):
        def generate(self, batch: Any) -> Any:
            if any(row["id"] == "row 30" for row in batch):
                while not list(tmp_path.glob("part-*")):
                    time.sleep(0.1)
                raise MemoryError
            return super().generate(batch)

    # One block with all rows: it must be split into batches, or nothing would be written before its end.
    dataset = from_items(rows(40), override_num_blocks=1)
    options: dict[str, Any] = {"batch_size": 4, "rows_per_part": 5, **WORKERS, **PAIR}
    with pytest.raises(ray.exceptions.RayTaskError):
        uag.ray.generate_dataset(dataset, tmp_path, generator=Stopping, **options)
    num_written = read_parquet(str(tmp_path)).count()
    assert 5 <= num_written < 40
    (tmp_path / ".killed.unfinished").write_bytes(b"part of a file")
    summary = uag.ray.generate_dataset(dataset, tmp_path, **options)
    assert (summary.num_skipped, summary.num_written) == (num_written, 40 - num_written)
    check(tmp_path, 40, expected)


@pytest.mark.slow
def test_a_finished_run_has_nothing_to_do(tmp_path: Path, expected: dict[str, list[int]]) -> None:
    for num_skipped, num_written in ((0, 3), (3, 0)):
        summary = uag.ray.generate_dataset(from_items(rows(3)), tmp_path, **PAIR)
        assert (summary.num_skipped, summary.num_written) == (num_skipped, num_written)
    check(tmp_path, 3, expected)


def test_rows_that_fail(tmp_path: Path, expected: dict[str, list[int]]) -> None:
    inputs = [*rows(6), {"id": "long", "prompt": "x = 1\n" * 5000}, {"id": "none", "prompt": None}]
    summary = uag.ray.generate_dataset(from_items(inputs), tmp_path, batch_size=3, **PAIR)
    assert (summary.num_written, summary.num_failed) == (8, 2)
    found = {row["id"]: row for row in read_parquet(str(tmp_path)).take_all()}
    assert "positions of the target" in found["long"]["generation_error"]
    assert found["none"]["generation_error"].startswith("TypeError")
    assert all(list(found[row["id"]]["generated_ids"]) == expected[row["id"]] for row in rows(6))


@pytest.mark.parametrize("batch_format", ["default", pytest.param("pyarrow", marks=pytest.mark.slow)])
def test_map_batches_of_ones_own(expected: dict[str, list[int]], batch_format: str) -> None:
    inputs = [row | {"vector": [1.0, 2.0], "number": index} for index, row in enumerate(rows(10))]
    dataset = from_items(inputs).map_batches(
        uag.ray.BatchGenerator,
        fn_constructor_kwargs=PAIR,
        batch_size=4,
        batch_format=batch_format,
        compute=ActorPoolStrategy(size=1),
    )
    found = {row["id"]: row for row in dataset.take_all()}
    assert {row_id: list(row["generated_ids"]) for row_id, row in found.items()} == {
        row["id"]: expected[row["id"]] for row in inputs
    }
    assert all(list(found[row["id"]]["vector"]) == row["vector"] for row in inputs)


def test_a_dataset_without_ids_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"the dataset has no column 'id'; it has 'prompt'"):
        uag.ray.generate_dataset(from_items([{"prompt": "x"}]), tmp_path, **PAIR)
    pyarrow.parquet.write_table(pyarrow.table({"name": ["x"]}), tmp_path / "part-0.parquet")
    with pytest.raises(OptionError, match=r"the output in '.*' has no column 'id'; it has 'name'"):
        uag.ray.generate_dataset(from_items(rows(1)), tmp_path, **PAIR)
