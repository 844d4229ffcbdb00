"""The doctor: arithmetic against brute force, shares on toy tokenizers, reports on tiny models built from a config."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from tests.support.models import tiny_llama
from tests.support.tokenizers import byt5, byte_level, wordpiece
from uag.adapters import from_tokenizer
from uag.bench.passes import NUM_TIMED_PASSES
from uag.cli.doctor import break_even_acceptance, diagnose, expect, judge, share_of_text
from uag.cli.doctor_tables import render
from uag.drafting.model import DraftModel
from uag.errors import OptionError
from uag.loading import Pair

TEXT = "one two three four five six seven, one two three. " * 4


def tiny_pair(target_tokenizer: Any, draft_tokenizer: Any) -> Pair:
    target, draft = tiny_llama(700, num_layers=3), tiny_llama(700)
    return Pair(target, target_tokenizer, "tiny target", draft, draft_tokenizer, "tiny draft")


# Arithmetic ---------------------------------------------------------------------------------------------------------


def test_expected_tokens_are_those_of_a_simulated_round() -> None:
    acceptance, num_candidates = 0.6, 3
    generator = torch.Generator().manual_seed(5)
    accepted = torch.rand(200_000, num_candidates, generator=generator) < acceptance
    simulated = 1 + accepted.long().cumprod(dim=1).sum(dim=1).double().mean().item()
    # Free drafting that stops at 3 candidates, because the fourth would cost the earth.
    costs = {1: 1.0, 4: 1.0, 5: 1e9}
    best = expect(acceptance, costs, 0.0)
    assert best.num_candidate_tokens == num_candidates
    assert best.speed_up == pytest.approx(simulated, abs=0.01)


def test_costs_lie_on_straight_lines_between_the_measured_ones() -> None:
    # Candidates are surely accepted and free: n + 1 tokens cost (n + 1) / 2 + 1/2 passes, best at the longest length.
    best = expect(1.0, {1: 1.0, 17: 9.0}, 0.0)
    assert best.num_candidate_tokens == 16
    assert best.speed_up == pytest.approx(17 / 9)


def test_a_draft_that_is_never_right_only_costs() -> None:
    assert expect(0.0, {1: 1.0, 17: 1.0}, 0.1).speed_up == pytest.approx(1 / 1.1)


def test_break_even_is_where_the_gain_pays_the_draft() -> None:
    # One candidate at acceptance a gives 1 + a tokens for 1 + 0.25 passes.
    assert break_even_acceptance({1: 1.0, 2: 1.0, 17: 1.0}, 0.25) == 0.25
    assert break_even_acceptance({1: 1.0, 17: 1.0}, 2.0) is None


@pytest.mark.parametrize(
    ("break_even", "verdict"),
    [
        (0.2, "can pay: a target pass costs 12.0 draft steps, break-even at 20% acceptance, about 3.2x at 90%"),
        (0.9, "will hardly pay: "),
        (None, "does not pay: a target pass costs 12.0 draft steps, too few at any acceptance"),
    ],
)
def test_verdict_is_one_line(break_even: float | None, verdict: str) -> None:
    expectations = [SimpleNamespace(acceptance=0.9, speed_up=3.2)]
    line = judge(break_even, 12.0, expectations)  # type: ignore[arg-type]
    assert line.startswith(verdict)
    assert "\n" not in line


# Shares -------------------------------------------------------------------------------------------------------------


def test_equal_tokenizers_share_every_token_of_a_text() -> None:
    adapter = from_tokenizer(byte_level())
    ids = adapter.encode_continuation(TEXT.encode())
    assert share_of_text(adapter, ids, adapter, ids) == 1.0


def test_share_of_text_is_counted_by_spans() -> None:
    words, letters = from_tokenizer(byte_level()), from_tokenizer(byt5())
    data = TEXT.encode()
    word_ids, letter_ids = words.encode_continuation(data), letters.encode_continuation(data)
    assert len(letter_ids) == len(data)
    num_single_bytes = sum(len(words.token_bytes[token_id] or b"") == 1 for token_id in word_ids)
    assert share_of_text(words, word_ids, letters, letter_ids) == num_single_bytes / len(data)
    assert share_of_text(letters, letter_ids, words, word_ids) == num_single_bytes / len(word_ids)


# The report ---------------------------------------------------------------------------------------------------------


def test_report_of_a_pair() -> None:
    report = diagnose(tiny_pair(byte_level(), byt5()), TEXT)
    assert not report.is_identity
    assert report.target.family == "byte_level"
    assert report.target.is_exact
    assert report.draft_tokens_per_target_token > 1.2
    assert report.vocabulary_share == report.reachable_share == 1.0  # every byte is a token of both
    assert [item.acceptance for item in report.expectations] == [0.3, 0.5, 0.6, 0.7, 0.8, 0.9]
    assert report.expectations[-1].speed_up > report.expectations[0].speed_up
    parsed = json.loads(json.dumps(report.to_dict()))
    assert parsed["verdict"] == report.verdict
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
    console = Console(width=100)
    with console.capture() as capture:
        console.print(render(report))
    assert f"{1 << 15} x {pair.target.config.hidden_size}, float32" in capture.get()
    assert "passes of the target" in capture.get()


def test_what_a_pass_costs_is_compared_with_plain_decoding() -> None:
    assert expect(0.0, {1: 1.0, 17: 1.0}, 0.0, 2.0).speed_up == pytest.approx(2.0)
    assert break_even_acceptance({1: 1.0, 17: 1.0}, 1.5, 2.0) < break_even_acceptance({1: 1.0, 17: 1.0}, 1.5, 1.6)  # type: ignore[operator]


def test_report_of_one_tokenizer_twice() -> None:
    report = diagnose(tiny_pair(byte_level(), byte_level()), TEXT)
    assert report.is_identity
    assert report.text_share == report.vocabulary_share == report.reachable_share == 1.0
    assert report.draft_tokens_per_target_token == 1.0


def test_report_says_what_a_lossy_tokenizer_loses() -> None:
    report = diagnose(tiny_pair(byte_level(), wordpiece()), TEXT)
    assert not report.draft.is_exact
    assert report.draft.loss
    console = Console(width=100)
    with console.capture() as capture:
        console.print(render(report))
    assert "no: " in capture.get()
    assert report.verdict[:30] in capture.get()


def test_a_text_too_short_to_time_is_refused() -> None:
    with pytest.raises(OptionError, match=r"the text to compare on is 'a'"):
        diagnose(tiny_pair(byte_level(), byt5()), "a")
