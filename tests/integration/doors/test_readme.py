"""Runs the code of README.md, docs/ and examples/ as written."""

import re
import runpy
import shlex
from pathlib import Path

import pytest

import uag

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str, page: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)


def test_quick_start_runs_and_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = blocks("python")
    assert len([line for line in code.splitlines() if line.strip()]) < 10
    monkeypatch.chdir(tmp_path)  # it does not depend on the folder
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    assert "def read_lines(path):" in capsys.readouterr().out


def test_set_up_is_three_commands() -> None:
    install, main_job, tests = blocks("sh")[0].splitlines()
    assert shlex.split(install)[:4] == ["pip", "install", "-c", "constraints.txt"]
    assert (main_job, tests) == ("uag demo", "pytest")


def test_links_lead_to_files() -> None:
    links = re.findall(r"\]\((?!https?://)([^)#]+)\)", README)
    assert len(links) > 8
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_quickstart_example_is_equal_through_both_doors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["quickstart.py"])
    runpy.run_path(str(ROOT / "examples" / "quickstart.py"), run_name="__main__")
    assert "equal to plain decoding: True" in capsys.readouterr().out


@pytest.mark.parametrize(("page", "shown"), [("memory", "'memory': "), ("predictions", "from prediction")])
def test_the_first_example_of_a_page_runs(
    page: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # the memory is saved
    code = blocks("python", (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"))[0]
    exec(compile(code, f"{page}.md", "exec"), {})
    assert shown in capsys.readouterr().out


def test_the_examples_of_the_core_page_run_and_are_equal(capsys: pytest.CaptureFixture[str]) -> None:
    code = "\n".join(blocks("python", (ROOT / "docs" / "core.md").read_text(encoding="utf-8")))
    try:
        exec(compile(code, "core.md", "exec"), {"__name__": "core"})
    finally:
        uag.uninstall()
    assert "cross-tokenizer" in (shown := capsys.readouterr().out)
    assert "shared-vocabulary" in shown
