"""The scripts in benchmarks/ import, show their usage, and compute."""

import importlib
import json
import re
import runpy
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.demo_pair.fit import orthogonal
from benchmarks.demo_pair.library import strip_prose
from uag.loading import demo_folder

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
MODULES = sorted(path.stem for path in BENCHMARKS.glob("*.py"))
WITHOUT_COMMANDS = {"baselines", "calls", "common", "replay", "vllm_text"}


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


def load(name: str) -> Any:
    return importlib.import_module(name)


@pytest.mark.parametrize("name", [*MODULES, "benchmarks.demo_pair"])
def test_every_script_imports_and_shows_its_usage(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name in WITHOUT_COMMANDS:
        assert load(name).__doc__
        return
    monkeypatch.setattr("sys.argv", [f"{name}.py", "--help"])
    run, script = (runpy.run_module, name) if "." in name else (runpy.run_path, str(BENCHMARKS / f"{name}.py"))
    with pytest.raises(SystemExit) as ended:
        run(script, run_name="__main__")
    assert ended.value.code == 0
    assert f"usage: {name}" in capsys.readouterr().out


def test_a_table_shows_the_environment_and_missing_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = SimpleNamespace(output=tmp_path / "rows.jsonl")
    rows = [{"arm": "plain", "dtype": "float32"}, {"arm": "uag", "speed": 1.5, "dtype": "float32"}]
    load("common").show(arguments, "a title", {"arm": "{arm}", "speed": "{speed:.2f}"}, iter(rows))
    shown = capsys.readouterr().out
    assert "plain  -\nuag  1.50\n" in shown
    assert f"torch {metadata.version('torch')}" in shown
    assert shown.rstrip().endswith("float32")
    assert len([line for line in arguments.output.read_text().splitlines() if '"commit"' in line]) == 2


def test_real_pairs_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = load("real_pairs")
    for half, name in zip(("target", "draft"), module.PAIRS["qwen0.5b<-smollm2"], strict=True):
        (tmp_path / name).symlink_to(demo_folder(half))
    (tmp_path / "code.jsonl").write_text(json.dumps({"task_id": "1", "prompt": "def add(a, b):\n    return a + "}))
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    output = tmp_path / "rows.jsonl"
    flags = "--prompts 1 --tokens 4 --trials 1 --arms uag uag-gguf uag-no-draft --temperatures 0 0.7"
    files = ["--output", str(output), "--humaneval", str(tmp_path / "code.jsonl"), "--spec-bench", "/no/such/file"]
    command = ["real_pairs.py", str(tmp_path), *flags.split(), "--pairs", "qwen0.5b<-smollm2", *files]
    monkeypatch.setattr("sys.argv", command)
    module.main()
    shown = capsys.readouterr().out
    assert "uag-gguf: skipped: " in shown
    assert "Spec-Bench: skipped, no file /no/such/file" in shown
    assert "HumanEval (raw), greedy: 1 prompts x 4 tokens" in shown
    assert re.search(r"uag [\d.]+x: [\d.]+ from uag's own passes, [\d.]+ from drafting", shown)
    assert torch.backends.cpu.get_cpu_capability() in shown
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    expected = [(arm, temperature) for temperature in (0.0, 0.7) for arm in ("plain", "uag", "uag-no-draft")]
    assert [(row["arm"], row["temperature"]) for row in rows] == expected
    assert all(row["refusal"] is None and row["num_output_tokens"] == 4 for row in rows)


@pytest.mark.slow
def test_every_part_of_the_gpu_benchmark_runs_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["gpu.py", "--device", "cpu", "--small", "--trials", "1"])
    with pytest.raises(SystemExit) as end:
        load("gpu").main()
    assert end.value.code is None, end.value.code  # no command failed
    shown = capsys.readouterr().out
    assert "left out" not in shown
    assert re.findall(r"\n(\w+)  float32  [1-9]\d*%  0/1  0/1  0/1  0/1(?=\n)", shown) == list(load("gpu").CLASSES)
    assert re.search(r"tiny  1  compiled  1  [\d.]+\n", shown)
    assert len(re.findall(r"\ntiny <- .*  True  -(?=\n)", shown)) == 12
    assert re.search(r"tiny  no split-K  mean  torch.float32  none  0.0e\+00\n", shown)


def test_training_text_has_neither_comments_nor_docstrings() -> None:
    source = '"""Doc."""\nimport os  # why\n\n\ndef f():\n    """Say."""\n    # alone\n    return "#"\n'
    assert strip_prose(source) == ('import os\n\n\ndef f():\n    return "#"\n', (2, 3, 4, 5, 8))


@pytest.mark.parametrize("shape", [(2, 4, 8), (2, 8, 4)])
def test_updates_are_nearly_orthogonal(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonal(torch.randn(shape)))
    assert ((values > 0.5) & (values < 1.5)).all()


def test_a_faulty_clock_jumps_and_runs_fast_only_where_planned() -> None:
    ticks = iter(range(100))
    clock = load("faults").FaultyClock(lambda: float(next(ticks)))
    clock.faults = [(2, 1, 1.0, 5.0), (4, 2, 10.0, 0.0)]
    assert [clock() for _ in range(7)] == [1.0, 2.0, 8.0, 9.0, 19.0, 29.0, 30.0]
