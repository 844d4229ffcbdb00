"""The verdict of `uag doctor` and its terminal output."""

from __future__ import annotations

from typing import Any

import pytest

from uag.bench import ArmSummary
from uag.cli.ranking import Ranking

LONG_NAME = "/a/folder/" + "with-a-long-name/" * 8


def measured(name: str, speed_up: float, *quartiles: float, num_prompts: int = 8) -> ArmSummary:
    figures: dict[str, Any] = {"tokens_per_target_pass": 2.25, "acceptance_rate": 0.6}
    return ArmSummary(name, num_prompts, num_prompts, 0, "", 9.0, speed_up, quartiles, **figures)  # type: ignore[arg-type]


def ranking(*drafts: ArmSummary, **losses: str) -> Ranking:
    return Ranking("target", drafts, {draft.arm: 5_000_000 for draft in drafts}, losses)


@pytest.mark.parametrize(
    ("draft", "verdict"),
    [
        (measured("draft", 1.3, 1.1, 1.5), "worth using: 1.30 times the speed of plain decoding"),
        (measured("draft", 1.1, 0.9, 1.3), "may or may not be worth using: "),
        (measured("draft", 0.7, 0.5, 0.9), "not worth using: "),
        (measured("draft", 1.1, 1.1, 1.1, num_prompts=3), "too few prompts to tell: 1.10 times the speed of plain"),
        (ArmSummary("draft", 8, 8, 0, refusal="no"), "draft cannot draft for this target"),
    ],
)
def test_the_verdict_goes_by_the_quartiles(draft: ArmSummary, verdict: str) -> None:
    assert ranking(draft).verdict.startswith(verdict)


def test_a_ranking_shows_whole_names_and_why_a_draft_is_refused() -> None:
    refused = ArmSummary("bad", 0, 0, 0, refusal="no model folder 'bad'")
    both = ranking(measured(LONG_NAME, 1.3, 1.1, 1.5), refused, **{LONG_NAME: "upper case is lost"})
    assert both.verdict.startswith(f"best draft: {LONG_NAME}, worth using")
    _, figures, refusal, loss = both.table().splitlines()
    assert figures.split() == ["1.30", "(1.10-1.50)", "2.25", "60%", "5", "MB", LONG_NAME]
    assert refusal.split(maxsplit=1) == ["refused", "bad: no model folder 'bad'"]
    assert loss == f"{LONG_NAME}: upper case is lost"
    assert ranking(refused, refused).verdict == "none of these can draft for this target"
