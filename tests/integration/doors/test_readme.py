"""Runs the code of README.md, docs/ and examples/ as written."""

import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import pytest

import uag
from tests.support.served import chat_target
from uag.loading import demo_folder

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def shallow(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The demo target with 4 of its 36 layers, which takes a fraction of the time."""
    return chat_target(tmp_path_factory.mktemp("shallow") / "target", num_hidden_layers=4)


@pytest.fixture(autouse=True)
def _shallow_demo(shallow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uag.loading.demo_folder", lambda half: shallow if half == "target" else demo_folder(half))


def blocks(language: str, page: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)


def test_quick_start_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With the bundled pair's folders instead of the names on the hub."""
    (code,) = blocks("python")
    assert len([line for line in code.splitlines() if line.strip()]) < 10
    target, draft = "Qwen/Qwen2.5-Coder-7B", "HuggingFaceTB/SmolLM2-135M"
    assert (code.count(target), code.count(draft)) == (2, 1)
    code = code.replace(target, demo_folder("target")).replace(draft, demo_folder("draft"))
    monkeypatch.chdir(tmp_path)  # it does not depend on the folder
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(code, "README.md", "exec"), names)
    assert "def read_lines(path):" in (shown := capsys.readouterr().out)
    assert "cross-tokenizer" in shown
    stats = names["assistant"].stats
    assert (stats.num_output_tokens, stats.fallbacks) == (64, [])


def test_the_front_page_is_short() -> None:
    assert len(README.splitlines()) <= 110


def test_set_up_is_three_commands() -> None:
    install, main_job, tests = blocks("sh")[0].splitlines()
    assert shlex.split(install)[:4] == ["pip", "install", "-c", "constraints.txt"]
    assert (main_job, tests) == ("uag demo", "pytest -n 2")


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and mkdocs write them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    links = re.findall(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text(encoding="utf-8"))
    files = [((page.parent / link).resolve() if link else page, anchor) for link, anchor in links]
    assert [str(file) for file, _ in files if not file.exists()] == []
    assert [(file.name, anchor) for file, anchor in files if anchor and anchor not in anchors(file)] == []


def test_quickstart_example_is_equal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["quickstart.py"])
    runpy.run_path(str(ROOT / "examples" / "quickstart.py"), run_name="__main__")
    assert "equal to plain decoding: True" in capsys.readouterr().out


@pytest.mark.parametrize(("index", "shown"), [(0, "from prediction"), (1, "'memory': ")])
def test_the_examples_of_known_texts_run(
    index: int, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # the memory is saved
    code = blocks("python", (ROOT / "docs" / "free-candidates.md").read_text(encoding="utf-8"))[index]
    exec(compile(code, "free-candidates.md", "exec"), {})
    assert shown in capsys.readouterr().out


def test_the_examples_of_the_four_ideas_run_and_are_equal(capsys: pytest.CaptureFixture[str]) -> None:
    code = "\n".join(blocks("python", (ROOT / "docs" / "index.md").read_text(encoding="utf-8")))
    try:
        exec(compile(code, "index.md", "exec"), {"__name__": "ideas"})
    finally:
        uag.uninstall()
    assert "cross-tokenizer" in (shown := capsys.readouterr().out)
    assert "shared-vocabulary" in shown
