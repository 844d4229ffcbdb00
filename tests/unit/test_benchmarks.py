"""The scripts in benchmarks/ import, show their usage, and compute."""

import importlib
import itertools
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
from tests.peer.compare import failing_only_with_uag
from uag.kernels import kernel
from uag.loading import demo_folder

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
MODULES = sorted(path.stem for path in BENCHMARKS.glob("*.py"))
WITHOUT_COMMANDS = {"baselines", "calls", "common", "quantizations", "replay", "vllm_text"}


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


def load(name: str) -> Any:
    return importlib.import_module(name)


@pytest.mark.parametrize("name", [*MODULES, "benchmarks.demo_pair"])
def test_scripts_show_usage(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert shown.splitlines()[-1].startswith(f"commit {load('common').commit()}; float32; ")
    assert len([line for line in arguments.output.read_text().splitlines() if '"commit"' in line]) == 2


@pytest.fixture(scope="module")
def readme_and_rows(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Any]]:
    """README.md after real_pairs.py has measured the demo pair and written its table there, and what it measured."""
    folder = tmp_path_factory.mktemp("real")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        module = load("real_pairs")
        patch.setattr(torch, "set_num_threads", lambda _: None)
        patch.setattr(module, "ROOT", folder)
        (folder / "README.md").write_text(
            (BENCHMARKS.parent / "README.md").read_text(encoding="utf-8"), encoding="utf-8"
        )
        draft, output = demo_folder("draft"), str(folder / "rows.jsonl")
        flags = ["--tokens", "4", "6", "--prompts", "1", "--file", "/no/such/file"]
        patch.setattr("sys.argv", ["real_pairs.py", f"{draft}<-{draft}", *flags, "--output", output])
        module.main()
        patch.setattr("sys.argv", ["real_pairs.py", "--readme", output])
        module.main()
        return (folder / "README.md").read_text(encoding="utf-8"), module.read(Path(output))


def test_real_pairs_are_measured_with_every_arm_dtype_and_length(readme_and_rows: tuple[str, list[Any]]) -> None:
    _, rows = readme_and_rows
    arms = ["plain", "uag-no-draft", "uag", "uag-lookup", "uag-draft", "uag-useless", "transformers"]
    calls = itertools.product(("float32", "bfloat16"), (4, 6), arms)
    assert [(row["dtype"], row["num_tokens"], row["arm"]) for row in rows] == list(calls)
    assert all(row["refusal"] is None and row["speed_up"] > 0 for row in rows)
    assert {"commit", "versions", "hardware"} <= rows[0].keys()
    assert len(json.dumps(rows[0])) < 2000


def test_the_table_of_a_file_is_written_into_the_readme(readme_and_rows: tuple[str, list[Any]]) -> None:
    text, rows = readme_and_rows
    module = load("real_pairs")
    (table,) = module.TABLE.findall(text)
    assert table == module.markdown(rows)
    lines = table.splitlines()
    assert len(lines) == 2 + 2 + 2
    speeds = [f"{row['tokens_per_s']:.1f}" for row in rows if row["arm"] == "plain"]
    assert lines[2].startswith(f"| float32 | draft <- draft | {speeds[0]} / {speeds[1]} | ")
    assert f"{rows[2]['speed_up']:.2f}" in lines[2]
    assert "*Measured: 4 / 6 new tokens, 1 prompts of " in lines[-1]
    assert f"kernels {kernel.LEVEL or 'off'}, " in lines[-1]
    changed = text.replace(lines[2], lines[2].replace(f"{rows[0]['tokens_per_s']:.1f}", "99999.0"))
    assert module.TABLE.findall(changed) != [module.markdown(rows)]
    unchanged = (BENCHMARKS.parent / "README.md").read_text(encoding="utf-8")
    assert module.TABLE.sub("", text) == module.TABLE.sub("", unchanged)


def test_the_readme_has_the_table_of_the_last_results() -> None:
    module = load("real_pairs")
    (table,) = module.TABLE.findall((BENCHMARKS.parent / "README.md").read_text(encoding="utf-8"))
    files = sorted(module.RESULTS.glob("*.jsonl"))
    if not files:
        pytest.skip("no results are stored yet in benchmarks/results")
    assert table == module.markdown(module.read(files[-1])), f"run: benchmarks/real_pairs.py --readme {files[-1]}"


@pytest.mark.slow
def test_the_gpu_benchmark_runs_on_a_cpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
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


@pytest.mark.parametrize("outcome", ["failed", "passed"])
def test_what_fails_plainly_too_is_not_uag_alone(outcome: str) -> None:
    """Of transformers' own tests, which tests/peer runs."""
    plain = {"a": (outcome, ""), "b": ("passed", ""), "c": ("skipped", "")}
    ours = {"a": ("failed", ""), "c": ("failed", "")}
    expected = ["b", "c"] if outcome == "failed" else ["a", "b", "c"]  # b: the run under uag was aborted before it
    assert failing_only_with_uag(plain, ours) == expected
