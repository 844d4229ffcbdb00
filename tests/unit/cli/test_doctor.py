"""The verdict of `uag doctor`, its terminal output, and its prompts."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from tests.support.tokenizers import byte_level
from uag.cli.doctor_tables import show_ranking
from uag.cli.measured import Measured, MeasureOptions
from uag.cli.ranking import Ranked, Ranking
from uag.errors import OptionError
from uag.measure import Acceptance, Estimate, Forecast

LONG_NAME = "/a/folder/" + "with-a-long-name/" * 8


def shown(ranking: Ranking) -> str:
    """The output on a terminal of 80 columns."""
    console = Console(file=io.StringIO(), width=80)
    show_ranking(console, ranking)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def measured(low: float | None, value: float, high: float | None) -> Measured:
    greedy = Acceptance(0.0, 8, 500, Estimate(0.6, 0.5, 0.7))
    return Measured((greedy,), Forecast(Estimate(value, low, high), 2.25, 3.5, 1.15, 0.2, 0.9))


@pytest.mark.parametrize(
    ("interval", "verdict", "title"),
    [
        ((1.1, 1.3, 1.5), "worth using: expected speed 1.30 (1.10 to 1.50) times that of plain", "95 % intervals"),
        ((0.9, 1.1, 1.3), "may or may not be worth using: ", "95 % intervals"),
        ((0.5, 0.7, 0.9), "not worth using: ", "95 % intervals"),
        ((None, 1.1, None), "too few prompts to tell: expected speed 1.10 times that of plain", "too few for"),
    ],
)
def test_the_verdict_goes_by_the_interval(
    interval: tuple[float | None, float, float | None], verdict: str, title: str
) -> None:
    result = measured(*interval)
    assert result.verdict.startswith(verdict)
    assert result.verdict.endswith("on 8 prompts")
    text = shown(Ranking("target", (Ranked("draft", measured=result),), {1: 0.001}))
    for figure in ("60% (50% to 70%)", "1.15", "2.25", "20%", "90%", "1.0 ms over 1", title):
        assert figure in text


def test_a_ranking_shows_whole_names_and_why_a_draft_is_refused() -> None:
    drafts = (
        Ranked(LONG_NAME, 5_000_000, 0.25, "upper case is lost", measured(1.1, 1.3, 1.5)),
        Ranked("bad", refusal="no model folder 'bad'"),
    )
    text = shown(Ranking("target", drafts, {}))
    line = next(line for line in text.splitlines() if line.endswith(LONG_NAME))
    assert all(figure in line for figure in ("1.30 (1.10 to 1.50)", "60%", "2.25", "1.15", "5 MB", "25%"))
    assert f"{LONG_NAME}: upper case is lost\n" in text
    assert "bad: no model folder 'bad'" in text
    assert text.startswith(f"best draft: {LONG_NAME}, worth using")
    assert Ranking("target", drafts[1:], {}).verdict == "none of these can draft for this target"


def test_prompts_come_from_a_file_or_with_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("uag.hf.models.max_positions", lambda _: 96)
    path, tokenizer = tmp_path / "prompts.txt", byte_level()
    path.write_text("one\ntwo\nthree\nfour\n", encoding="utf-8")
    chosen = MeasureOptions(path, num_prompts=2).prompt_ids(None, tokenizer)
    assert chosen == [tuple(tokenizer(text)["input_ids"]) for text in ("one", "three")]
    bundled = MeasureOptions(num_prompts=4).prompt_ids(None, tokenizer)
    assert len(bundled) == 4
    assert max(map(len, bundled)) == 96 - 64  # a prompt that leaves no space for new tokens is truncated on the left
    with pytest.raises(OptionError, match="96 new tokens do not fit into the target's 96 positions"):
        MeasureOptions(max_new_tokens=96).prompt_ids(None, tokenizer)
