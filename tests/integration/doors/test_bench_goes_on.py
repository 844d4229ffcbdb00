"""A killed benchmark continues with the rows in its file, and shows its progress through a pipe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from uag import cli

LINES_AT_ONCE = "from uag.bench import progress; progress.SECONDS_BETWEEN_LINES = 0.0; from uag.cli import main; main()"
FLAGS = ["--max-new-tokens", "16", "--trials", "1", "--arm", "uag", "--dtype", "float32", "--device", "cpu"]


def bench(output: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", LINES_AT_ONCE, "bench", "--output", str(output), "--num-prompts", "3", *FLAGS]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)


def rows_of(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.read_text(encoding="utf-8").split("\n")[:-1]]


@pytest.mark.slow
def test_a_killed_benchmark_continues(tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    killed = bench(output)
    while not output.exists() and killed.poll() is None:
        time.sleep(0.01)
    killed.kill()
    out, err = killed.communicate()
    assert out == ""
    assert "measuring: 1 of 6 runs" in err
    kept = rows_of(output)
    assert 2 <= len(kept) < 6
    with output.open("a") as file:
        file.write('{"arm": "pl')  # as if killed while it wrote

    again = bench(output)
    out, err = again.communicate(timeout=240)
    assert again.returncode == 0
    assert "plain" in out
    assert "uag" in out
    rows = rows_of(output)
    assert rows[: len(kept)] == kept
    assert [row["arm"] for row in rows] == ["plain", "uag"] * 3
    assert len({tuple(row["prompt_ids"]) for row in rows}) == 3
    assert "measuring: 1 of 6 runs" not in err  # the first process measured it
    assert f"measuring: {len(kept) + 1} of 6 runs" in err


def test_changed_settings_are_measured_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "rows.jsonl"
    for num_tokens in ("2", "4"):
        with pytest.raises(SystemExit):
            cli.main(["bench", "--output", str(output), "--num-prompts", "1", *FLAGS, "--max-new-tokens", num_tokens])
    _, err = capsys.readouterr()
    assert f"{output}: 2 rows measured with other settings are not reused\n" in err
    assert [row["num_output_tokens"] for row in rows_of(output)] == [2, 2, 4, 4]
