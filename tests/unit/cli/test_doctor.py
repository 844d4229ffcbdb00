"""The report of `uag doctor` on tiny models built from a config, and its terminal output."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from tests.support.models import tiny_llama
from tests.support.tokenizers import byt5, byte_level, wordpiece
from uag.bench.passes import NUM_TIMED_PASSES
from uag.cli.doctor import diagnose
from uag.cli.doctor_tables import show_measured, show_ranking, show_report
from uag.cli.measured import PASS_WIDTHS, Measured, MeasureOptions
from uag.cli.ranking import Ranked, Ranking
from uag.drafting import open_passes
from uag.errors import OptionError
from uag.loading import Pair
from uag.measure import Acceptance, Estimate, Forecast

LONG_NAME = "/a/folder/" + "with-a-long-name/" * 8


def shown(show: Any, result: Any) -> str:
    """The output on a terminal of 80 columns."""
    console = Console(file=io.StringIO(), width=80)
    show(console, result)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def tiny_pair(target_tokenizer: Any, draft_tokenizer: Any) -> Pair:
    target, draft = tiny_llama(700, num_layers=3), tiny_llama(700)
    return Pair(target, target_tokenizer, LONG_NAME, draft, draft_tokenizer, "tiny draft")


def test_report_of_a_pair() -> None:
    report = diagnose(tiny_pair(byte_level(), byt5()))
    assert not report.is_identity
    assert report.target.family == "byte_level"
    assert report.target.is_exact
    assert report.draft_tokens_per_target_token > 1.2
    assert report.vocabulary_share == report.reachable_share == 1.0  # every byte is a token of both
    assert list(report.target_pass_s) == list(PASS_WIDTHS)
    parsed = json.loads(json.dumps(report.to_dict()))
    assert parsed["target"]["num_parameters"] > parsed["draft"]["num_parameters"]
    text = shown(show_report, report)
    assert f"target: {LONG_NAME}\n" in text
    assert "pass over 17 tokens" in text


def test_a_draft_is_timed_by_the_passes_that_drafting_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = tiny_pair(byte_level(), byt5())
    pair.draft.to(torch.bfloat16)
    timed_models = []
    passes_class: Any = type(open_passes(pair.draft))
    feed = passes_class.feed

    def noted(self: Any, requests: Any) -> None:
        timed_models.append(self.model)
        feed(self, requests)

    monkeypatch.setattr(passes_class, "feed", noted)
    assert diagnose(pair).draft_step_s > 0.0
    assert len(timed_models) > NUM_TIMED_PASSES
    assert all(model is pair.draft for model in timed_models)


def test_report_of_one_tokenizer_twice() -> None:
    report = diagnose(tiny_pair(byte_level(), byte_level()))
    assert report.is_identity
    assert report.vocabulary_share == report.reachable_share == 1.0
    assert report.draft_tokens_per_target_token == 1.0


def test_report_says_what_a_lossy_tokenizer_loses() -> None:
    report = diagnose(tiny_pair(byte_level(), wordpiece()))
    assert not report.draft.is_exact
    assert report.draft.loss
    assert "no: " in shown(show_report, report)


def measured(low: float | None, value: float, high: float | None) -> Measured:
    greedy = Acceptance(0.0, 4, 8, 500, Estimate(0.6, 0.5, 0.7), Estimate(2.5, 2.0, 3.0))
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
    text = shown(show_measured, result)
    for figure in ("60% (50% to 70%)", "2.50 (2.00 to 3.00)", "1.15", "2.25", "20%", "90%", title):
        assert figure in text


def test_a_ranking_shows_whole_names_and_why_a_draft_is_refused() -> None:
    drafts = (
        Ranked(LONG_NAME, 5_000_000, measured(1.1, 1.3, 1.5)),
        Ranked("bad", refusal="no model folder 'bad'"),
    )
    text = shown(show_ranking, Ranking("target", drafts))
    line = next(line for line in text.splitlines() if line.endswith(LONG_NAME))
    assert all(figure in line for figure in ("1.30 (1.10 to 1.50)", "60%", "2.25", "1.15", "5 MB"))
    assert "bad: no model folder 'bad'" in text
    assert text.startswith(f"best draft: {LONG_NAME}, worth using")
    assert Ranking("target", drafts[1:]).verdict == "none of these can draft for this target"


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
