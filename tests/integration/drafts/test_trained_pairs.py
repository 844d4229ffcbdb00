"""The trained pairs' ids equal plain decoding's: all six pairs of the story models, and the demo pair."""

from __future__ import annotations

import itertools
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import uag
from tests.support.models import tiny_target
from tests.support.rounding import Differences
from tests.support.trained import trained
from uag.bench import heldout_prompts

STORIES = ("stories260K", "stories-tok105", "stories-tok361")
STORY_PAIRS = list(itertools.permutations(STORIES, 2))

_STARTS = (
    "Once upon a time, there was a {} {} named {}.",
    "One day, {2} the {1} found a {0} box in the",
    "{2} was a very {0} {1}. {2} liked to",
    'The {0} {1} said, "Hello, {2}! Do you want to',
    "There was a {0} {1} who lived near the big tree. {2} w",
)
_WORDS = (("little", "girl", "Lily"), ("big", "dog", "Max"), ("happy", "boy", "Tim"), ("sad", "bird", "Lucy"))


def stories(num: int) -> list[str]:
    """Return twenty story openings, some ending within a word."""
    texts = [start.format(*words) for words in _WORDS for start in _STARTS]
    return texts[:: len(texts) // num][:num]


def functions(num: int) -> list[str]:
    """Return prompts from modules that the demo pair was not trained on."""
    prompts = [prompt.text for prompt in heldout_prompts()]
    return prompts[:: len(prompts) // num][:num]


def compare(names: tuple[str, str], texts: list[str], num_new: int) -> Any:
    (target, tokenizer), (draft, draft_tokenizer) = (trained(name) for name in names)
    # adaptive, which seldom drafts where target and draft are of one size, and eight candidates in every round
    assistants = [uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=size) for size in (None, 8)]
    differences = Differences()
    total = SimpleNamespace(candidates=0, accepted=0, passes=0, ids=0)
    for text, assistant in zip(texts, itertools.cycle(assistants), strict=False):
        inputs = tokenizer(text, return_tensors="pt")
        inputs.pop("token_type_ids", None)
        width = inputs["input_ids"].shape[1]
        expected = target.generate(**inputs, max_new_tokens=num_new, do_sample=False)[0].tolist()
        found = assistant.generate(target, **inputs, max_new_tokens=num_new, do_sample=False)[0].tolist()
        differences.check(target, expected[:width], expected[width:], found[width:])
        total.candidates += assistant.stats.num_candidate_tokens
        total.accepted += assistant.stats.num_accepted_tokens
        total.passes += assistant.stats.num_target_forwards
        total.ids += assistant.stats.num_output_tokens
    differences.report(f"{names[0]} <- {names[1]}")
    sys.stdout.write(f"  {total.passes} passes, {total.accepted} of {total.candidates} candidates accepted\n")
    assert 0 < total.accepted < total.candidates
    assert total.passes < total.ids
    return differences


@pytest.mark.parametrize("names", STORY_PAIRS, ids="<-".join)
def test_story_pairs(names: tuple[str, str]) -> None:
    assert len(compare(names, stories(4), 48).found) <= 1


def test_the_demo_pair() -> None:
    assert len(compare(("demo-target", "demo-draft"), functions(4), 48).found) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("names", [*STORY_PAIRS, ("demo-target", "demo-draft")], ids="<-".join)
def test_at_length(names: tuple[str, str]) -> None:
    texts = functions(50) if names[0] == "demo-target" else stories(20)
    differences = compare(names, texts, 128)
    assert differences.num_ids >= len(texts) * 60
    assert len(differences.found) <= 2


# ---------------------------------------------------------------------- the judge of differences


class Uneven:
    """A target whose two best ids differ by `gap`, and swap in a pass of several tokens."""

    def __init__(self, gap: float, flips: bool) -> None:
        self.model, _ = tiny_target("llama")
        self.gap = gap
        self.flips = flips

    def __call__(self, **given: Any) -> Any:
        return self.forward(**given)

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, **given: Any) -> Any:
        outputs = self.model(input_ids=input_ids, position_ids=position_ids, **given)
        logits = outputs.logits.clone()
        logits[..., 7] = logits[..., 8] = 1000.0
        logits[..., 8 if self.flips and input_ids.shape[1] in (2, 3) else 7] += self.gap
        return SimpleNamespace(logits=logits, past_key_values=outputs.past_key_values)


PROMPT, PLAIN = [1, 2, 3, 4], [7, 7, 7, 7, 7]


def test_a_flip_that_the_target_reproduces_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    differences = Differences()
    differences.check(Uneven(6.2e-5, flips=True), PROMPT, PLAIN, [7, 7, 8, 9, 9])
    differences.report("a pair")
    assert "5 ids compared, 1 rows part" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("gap", "flips", "plain", "written", "reason"),
    [
        (6.2e-5, False, PLAIN, [7, 7, 8, 7, 7], "no block form gives it"),
        (1e-2, True, PLAIN, [7, 7, 8, 7, 7], "too wide for rounding"),
        (6.2e-5, True, PLAIN, [7, 7, 9, 7, 7], "too wide for rounding"),
        (6.2e-5, True, PLAIN, [7, 7, 7], "plain decoding writes 5 ids, and 3 were written"),
        (6.2e-5, True, PLAIN, [7, 7, 7, 7, 7, 7], "plain decoding writes 5 ids, and 6 were written"),
        (6.2e-5, True, [7, 8, 7], [7, 7, 7], "one-token form gives 7"),
    ],
)
def test_other_differences_are_not_waved_through(
    gap: float, flips: bool, plain: list[int], written: list[int], reason: str
) -> None:
    with pytest.raises(AssertionError, match=reason):
        Differences().check(Uneven(gap, flips), PROMPT, plain, written)
