"""What the doctor measured, as a reader sees it, and what is measured on."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.support.tokenizers import byte_level
from uag.cli import ranking
from uag.cli.doctor_tables import render_measured, render_ranking
from uag.cli.measured import Measured
from uag.cli.ranking import MeasureOptions, Ranked, Ranking
from uag.errors import OptionError
from uag.measure import Acceptance, Estimate, Forecast


def measured(low: float | None, value: float, high: float | None) -> Measured:
    greedy = Acceptance(0.0, 4, 8, 500, Estimate(0.6, 0.5, 0.7), Estimate(2.5, 2.0, 3.0))
    return Measured((greedy,), Forecast(Estimate(value, low, high), 2.25, 3.5, 1.15, 0.2, 0.9))


def shown(part: Any) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(part)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        ((1.1, 1.3, 1.5), "worth using: 1.30 (1.10 to 1.50) times the speed of plain decoding expected, greedy"),
        ((0.9, 1.1, 1.3), "may or may not be worth using: "),
        ((0.5, 0.7, 0.9), "not worth using: "),
        ((None, 1.1, None), "too few prompts to tell: 1.10 times the speed of plain decoding"),
    ],
)
def test_the_verdict_goes_by_the_interval(interval: tuple[float | None, float, float | None], verdict: str) -> None:
    assert measured(*interval).verdict.startswith(verdict)


def test_figures_stand_with_their_intervals() -> None:
    text = shown(render_measured(measured(1.1, 1.3, 1.5)))
    for figure in ("60% (50% to 70%)", "2.50 (2.00 to 3.00)", "1.15", "2.25", "20%", "90%"):
        assert figure in text


def test_a_ranking_fits_a_terminal_and_says_why_a_draft_is_refused() -> None:
    drafts = (
        Ranked("a/good-draft", 5_000_000, measured(1.1, 1.3, 1.5)),
        Ranked("bad", refusal="no model folder 'bad'"),
    )
    text = shown(render_ranking(Ranking("target", drafts)))
    line = next(line for line in text.splitlines() if "a/good-draft" in line and "60%" in line)
    assert "1.30 (1.10 to 1.50)" in line
    assert all(figure in line for figure in ("60%", "2.25", "1.15", "5 MB"))
    assert "bad: no model folder 'bad'" in text
    assert text.startswith("best draft: a/good-draft, worth using")
    assert Ranking("target", drafts[1:]).verdict == "none of these can draft for this target"


class Asked(Exception):  # noqa: N818 - no error: it ends the test where the target would write
    """Holds the prompts."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def measuring(target: Any, tokenizer: Any, prompts: Any, *_: Any) -> None:
        raise Asked(prompts)

    monkeypatch.setattr(ranking, "Measuring", measuring)
    monkeypatch.setattr("uag.hf.models.max_positions", lambda _: 96)


def prompts_of(options: MeasureOptions) -> list[tuple[int, ...]]:
    with pytest.raises(Asked) as caught:
        options.measuring(None, byte_level())
    found: list[tuple[int, ...]] = caught.value.args[0]
    return found


@pytest.mark.usefixtures("asked")
def test_prompts_come_from_a_file_from_running_text_or_with_the_package(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("one\ntwo\nthree\nfour\n", encoding="utf-8")
    tokenizer = byte_level()
    chosen = prompts_of(MeasureOptions(path, num_prompts=2))
    assert chosen == [tuple(tokenizer(text)["input_ids"]) for text in ("one", "three")]
    text = "one two three four five. " * 40
    cut = prompts_of(MeasureOptions(text=text, num_prompts=3))
    assert len(cut) == 3
    assert all(tokenizer.decode(ids) in text for ids in cut)
    bundled = prompts_of(MeasureOptions(num_prompts=4))
    assert len(bundled) == 4
    assert max(map(len, bundled)) == 96 - 64  # what leaves no room to write loses its beginning
    with pytest.raises(OptionError, match="has no room for 96 new tokens"):
        MeasureOptions(max_new_tokens=96).measuring(None, tokenizer)
    with pytest.raises(OptionError, match="give a page of what is to be written"):
        MeasureOptions(text="one", num_prompts=8).measuring(None, tokenizer)
