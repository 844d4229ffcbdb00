"""The doctor's report on tiny models built from a config."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from rich.console import Console

from tests.support.models import tiny_llama
from tests.support.tokenizers import byt5, byte_level, wordpiece
from uag.bench.passes import NUM_TIMED_PASSES
from uag.cli.doctor import diagnose
from uag.cli.doctor_tables import render_report
from uag.drafting.models.torch_draft import DraftModel
from uag.errors import OptionError
from uag.loading import Pair


def shown(part: Any) -> str:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(part)
    return capture.get()


TEXT = "one two three four five six seven, one two three. " * 4


def tiny_pair(target_tokenizer: Any, draft_tokenizer: Any) -> Pair:
    target, draft = tiny_llama(700, num_layers=3), tiny_llama(700)
    return Pair(target, target_tokenizer, "tiny target", draft, draft_tokenizer, "tiny draft")


def test_report_of_a_pair() -> None:
    report = diagnose(tiny_pair(byte_level(), byt5()), TEXT)
    assert not report.is_identity
    assert report.target.family == "byte_level"
    assert report.target.is_exact
    assert report.draft_tokens_per_target_token > 1.2
    assert report.vocabulary_share == report.reachable_share == 1.0  # every byte is a token of both
    parsed = json.loads(json.dumps(report.to_dict()))
    assert parsed["target"]["num_parameters"] > parsed["draft"]["num_parameters"]


def test_a_draft_is_timed_by_the_passes_that_drafting_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = tiny_pair(byte_level(), byt5())
    pair.draft.to(torch.bfloat16)
    drafted = []
    feed = DraftModel.feed

    def noted(self: DraftModel, requests: Any) -> None:
        drafted.append(self.model)
        feed(self, requests)

    monkeypatch.setattr(DraftModel, "feed", noted)
    assert diagnose(pair, TEXT).draft_step_s > 0.0
    assert len(drafted) > NUM_TIMED_PASSES
    assert all(model is pair.draft for model in drafted)


def test_the_report_shows_what_blocks_cost_and_the_forms_of_the_products() -> None:
    pair = tiny_pair(byte_level(), byt5())
    pair.target.lm_head = torch.nn.Linear(pair.target.config.hidden_size, 1 << 15, bias=False)
    report = diagnose(pair, TEXT)
    assert list(report.target_pass_s)[:4] == [1, 2, 4, 8]
    head = [choice for choice in report.products if choice.shape.num_out == 1 << 15]
    assert {choice.shape.num_rows for choice in head} >= {1, 2, 4, 8}
    rows = {row["num_rows"]: row for row in report.to_dict()["products"] if row["num_out"] == 1 << 15}
    assert rows[4]["dtype"] == "float32"
    assert rows[4]["s"] <= rows[4]["as_is_s"]
    form = f"{1 << 15} x {pair.target.config.hidden_size}, float32"
    assert form in shown(render_report(report, is_verbose=True))
    assert form not in shown(render_report(report))
    assert "passes of the target" in shown(render_report(report))


def test_report_of_one_tokenizer_twice() -> None:
    report = diagnose(tiny_pair(byte_level(), byte_level()), TEXT)
    assert report.is_identity
    assert report.vocabulary_share == report.reachable_share == 1.0
    assert report.draft_tokens_per_target_token == 1.0


def test_report_says_what_a_lossy_tokenizer_loses() -> None:
    report = diagnose(tiny_pair(byte_level(), wordpiece()), TEXT)
    assert not report.draft.is_exact
    assert report.draft.loss
    assert "no: " in shown(render_report(report))


def test_a_text_too_short_to_time_is_refused() -> None:
    with pytest.raises(OptionError, match=r"the text to compare on is too short"):
        diagnose(tiny_pair(byte_level(), byt5()), "a")
