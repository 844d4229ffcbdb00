"""The verdict of `uag doctor`."""

from typing import Any

import pytest

from uag.bench import ArmSummary, advice


def measured(name: str, speed_up: float, *quartiles: float, num_prompts: int = 8, no_draft: float = 1.0) -> ArmSummary:
    figures: dict[str, Any] = {"tokens_per_target_pass": 2.25, "acceptance_rate": 0.6, "gain": speed_up / no_draft}
    figures["gain_quartiles"] = tuple(quartile / no_draft for quartile in quartiles)
    return ArmSummary(name, num_prompts, num_prompts, 0, "", 9.0, speed_up, quartiles, **figures)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("draft", "verdict"),
    [
        (measured("draft", 1.3, 1.1, 1.5), "worth using: 1.30 times the speed of plain decoding"),
        (measured("draft", 1.1, 0.9, 1.3), "inconclusive: "),
        (measured("draft", 0.7, 0.5, 0.9), "not worth using: "),
        (measured("draft", 1.1, 1.1, 1.1, num_prompts=3), "too few prompts to tell: 1.10 times the speed of plain"),
        (
            measured("draft", 1.8, 1.6, 1.9, no_draft=2.0),  # fast matrix products alone are faster
            "not worth using: 1.80 times the speed of plain decoding, 0.90 times that of uag without a draft",
        ),
        (measured("draft", 1.2, 0.9, 1.3, no_draft=0.6), "inconclusive: "),
        (ArmSummary("draft", 8, 8, 0, refusal="no"), "draft cannot draft for this target"),
    ],
)
def test_the_verdict_goes_by_the_quartiles(draft: ArmSummary, verdict: str) -> None:
    assert advice([draft]).startswith(verdict)


def test_the_verdict_on_several_drafts_is_that_of_the_best() -> None:
    refused = ArmSummary("bad", 0, 0, 0, refusal="no model folder 'bad'")
    assert advice([measured("good", 1.3, 1.1, 1.5), refused]).startswith("best draft: good, worth using")
    assert advice([refused, refused]) == "none of these can draft for this target"
