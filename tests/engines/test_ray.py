"""Ray Data on two raylets, with killed workers and a stopped run: every row is written once and equals plain greedy."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ray = pytest.importorskip("ray", reason="needs Ray Data: pip install 'ray[data]'")

from ray.cluster_utils import Cluster  # noqa: E402
from ray.data import ActorPoolStrategy, DataContext, from_items, read_json, read_parquet  # noqa: E402
from ray.data.checkpoint import CheckpointConfig  # noqa: E402

import uag.ray  # noqa: E402
from uag.loading import demo_folder, load_pair  # noqa: E402

pytestmark = pytest.mark.engines

NUM_ROWS, NUM_TOKENS = 40, 8
# The demo's draft (two layers) as target and draft: these tests check rows, not speed.
PAIR: dict[str, Any] = {"target": demo_folder("draft"), "draft": demo_folder("draft"), "max_new_tokens": NUM_TOKENS}


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


def rows(num: int = NUM_ROWS) -> list[dict[str, Any]]:
    return [{"id": f"row {index}", "prompt": f"def f{index}(a, b):\n"} for index in range(num)]


@pytest.fixture(scope="module")
def expected() -> dict[str, list[int]]:
    pair = load_pair(PAIR["target"], PAIR["draft"], dtype="float32", device="cpu")
    found = {}
    for row in rows():
        inputs = pair.target_tokenizer(row["prompt"], return_tensors="pt")
        ids = pair.target.generate(**inputs, max_new_tokens=NUM_TOKENS, do_sample=False, pad_token_id=0)[0].tolist()
        found[row["id"]] = ids[inputs["input_ids"].shape[1] :]
    return found


def generate(folder: Path, generator: type[uag.ray.BatchGenerator]) -> None:
    """Run the pipeline of docs/integrations.md with two workers, one on each raylet."""
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows()), encoding="utf-8")
    DataContext.get_current().checkpoint_config = CheckpointConfig("id", str(folder / "progress"))
    dataset = read_json(str(prompts)).repartition(target_num_rows_per_block=4)
    DataContext.get_current().checkpoint_config = None  # a dataset keeps the settings it was made with
    dataset.map_batches(
        generator,
        fn_constructor_kwargs=PAIR,
        batch_size=4,
        batch_format="pyarrow",
        compute=ActorPoolStrategy(size=2),
        num_cpus=1,
        scheduling_strategy="SPREAD",
    ).write_parquet(str(folder / "generated"))


def check(folder: Path, expected: dict[str, list[int]]) -> None:
    written = read_parquet(str(folder / "generated")).take_all()
    assert sorted(row["id"] for row in written) == sorted(expected)
    for row in written:
        assert row["generation_error"] is None
        assert list(row["generated_ids"]) == expected[row["id"]], row["id"]


def test_workers_killed_in_the_middle_of_a_batch(tmp_path: Path, expected: dict[str, list[int]]) -> None:
    class Dying(uag.ray.BatchGenerator):
        num_batches = 0

        def generate(self, batch: Any) -> Any:
            (tmp_path / f"node-{ray.get_runtime_context().get_node_id()}").touch()
            self.num_batches += 1
            for death in (tmp_path / f"death-{number}" for number in range(2)):
                if self.num_batches == 2 and not death.exists():
                    death.touch()
                    super().generate(batch[:1])
                    os.kill(os.getpid(), signal.SIGKILL)
            return super().generate(batch)

    generate(tmp_path, Dying)
    assert len(list(tmp_path.glob("death-*"))) == 2
    assert len(list(tmp_path.glob("node-*"))) == 2, "both raylets had work"
    check(tmp_path, expected)


def test_a_run_that_stopped_is_resumed(tmp_path: Path, expected: dict[str, list[int]]) -> None:
    class Stopping(uag.ray.BatchGenerator):
        def generate(self, batch: Any) -> Any:
            if any(row["id"] == "row 30" for row in batch):
                while not list((tmp_path / "generated").glob("*.parquet")):
                    time.sleep(0.1)
                raise MemoryError
            return super().generate(batch)

    class Counting(uag.ray.BatchGenerator):
        def generate(self, batch: Any) -> Any:
            with (tmp_path / "generated-again").open("a") as file:
                file.writelines(f"{row['id']}\n" for row in batch)
            return super().generate(batch)

    with pytest.raises(ray.exceptions.RayTaskError):
        generate(tmp_path, Stopping)
    num_written = read_parquet(str(tmp_path / "generated")).count()
    assert 4 <= num_written < NUM_ROWS
    generate(tmp_path, Counting)
    check(tmp_path, expected)
    assert len((tmp_path / "generated-again").read_text().splitlines()) == NUM_ROWS - num_written


@pytest.mark.parametrize("batch_format", ["default", pytest.param("pyarrow", marks=pytest.mark.slow)])
def test_columns_are_kept_and_rows_that_fail_have_the_reason(expected: dict[str, list[int]], batch_format: str) -> None:
    inputs = [*rows(6), {"id": "long", "prompt": "x = 1\n" * 5000}, {"id": "none", "prompt": None}]
    inputs = [row | {"vector": [1.0, 2.0], "number": index} for index, row in enumerate(inputs)]
    dataset = from_items(inputs).map_batches(
        uag.ray.BatchGenerator,
        fn_constructor_kwargs=PAIR,
        batch_size=4,
        batch_format=batch_format,
        compute=ActorPoolStrategy(size=1),
    )
    found = {row["id"]: row for row in dataset.take_all()}
    assert "positions of the target" in found["long"]["generation_error"]
    assert found["none"]["generation_error"].startswith("TypeError")
    assert all(list(found[row["id"]]["generated_ids"]) == expected[row["id"]] for row in rows(6))
    assert all(list(found[row["id"]]["vector"]) == row["vector"] for row in inputs)
