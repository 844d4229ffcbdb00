"""The verdict of `uag doctor` and its terminal output."""

from __future__ import annotations

import pytest

from uag.cli.ranking import Ranked, Ranking
from uag.measure import Estimate

LONG_NAME = "/a/folder/" + "with-a-long-name/" * 8


@pytest.mark.parametrize(
    ("speed_up", "verdict"),
    [
        (Estimate(1.3, 1.1, 1.5), "worth using: 1.30 (1.10 to 1.50) times the speed of plain decoding"),
        (Estimate(1.1, 0.9, 1.3), "may or may not be worth using: "),
        (Estimate(0.7, 0.5, 0.9), "not worth using: "),
        (Estimate(1.1), "too few prompts to tell: 1.10 times the speed of plain decoding"),
    ],
)
def test_the_verdict_goes_by_the_interval(speed_up: Estimate, verdict: str) -> None:
    assert Ranking("target", (Ranked("draft", speed_up=speed_up),)).verdict.startswith(verdict)


def test_a_ranking_shows_whole_names_and_why_a_draft_is_refused() -> None:
    best = Ranked(LONG_NAME, 5_000_000, "upper case is lost", Estimate(1.3, 1.1, 1.5), 2.25, 0.6)
    refused = Ranked("bad", refusal="no model folder 'bad'")
    ranking = Ranking("target", (best, refused))
    assert ranking.verdict.startswith(f"best draft: {LONG_NAME}, worth using")
    _, figures, refusal, loss = ranking.table().splitlines()
    assert figures.split() == ["1.30", "(1.10", "to", "1.50)", "2.25", "60%", "5", "MB", LONG_NAME]
    assert refusal.split(maxsplit=1) == ["refused", "bad: no model folder 'bad'"]
    assert loss == f"{LONG_NAME}: upper case is lost"
    assert Ranking("target", (refused, refused)).verdict == "none of these can draft for this target"
