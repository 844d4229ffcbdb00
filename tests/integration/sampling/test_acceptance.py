"""How many tokens a round writes when candidates share the target's random numbers: bounds, as measured."""

import pytest
import torch

from tests.support.grids import mostly_grid
from tests.support.trained import trained
from uag.assistant import Assistant

Case = tuple[str, str, float]
"""Target, draft, and temperature."""

CHARACTERS: Case = ("stories260K", "stories-tok105", 1.0)

FEW = ("The little dog was sad because", "Tim had a toy car. It was")
MANY = (
    *("Once upon a time", "Lily and Ben went to the park. They saw", FEW[0]),
    *("One day, a big bear found a red ball in the forest. He", FEW[1]),
    "Sara wanted to bake a cake, but she did not have any",
)

# Tokens per round as measured on 2026-11-21, less 5 %: texts of 40 tokens, 6 candidates a round.
OF_FEW: dict[Case, float] = {
    ("stories-tok361", "stories260K", 1.0): 3.30,
    ("stories-tok361", "stories260K", 0.3): 4.22,
    CHARACTERS: 2.62,
}
OF_MANY: dict[Case, float] = {
    ("stories-tok361", "stories260K", 1.0): 3.86,
    ("stories-tok361", "stories260K", 1.5): 2.96,
    ("stories-tok361", "stories260K", 0.3): 4.95,
    CHARACTERS: 2.37,
}


def tokens_per_round(case: Case, texts: tuple[str, ...] = FEW) -> float:
    target_name, draft_name, temperature = case
    model, tokenizer = trained(target_name)
    # The bounds are of the draft itself: a copy in 8 bits accepts up to 3 % less.
    assistant = Assistant(*trained(draft_name), tokenizer, num_candidate_tokens=6, draft_weights="model")
    accepted = rounds = 0
    for text in texts:
        torch.manual_seed(MANY.index(text))
        assistant.generate(
            model, **tokenizer(text, return_tensors="pt"), do_sample=True, top_k=0, temperature=temperature,
            max_new_tokens=40, pad_token_id=0,
        )  # fmt: skip
        accepted += assistant.stats.num_accepted_tokens
        rounds += assistant.stats.num_rounds
    return 1 + accepted / rounds


@pytest.mark.parametrize("case", mostly_grid(OF_FEW, [CHARACTERS, ("stories-tok361", "stories260K", 0.3)]), ids=str)
def test_acceptance_does_not_fall(case: Case) -> None:
    assert tokens_per_round(case) >= OF_FEW[case]


@pytest.mark.grid
@pytest.mark.parametrize("case", OF_MANY, ids=str)
def test_acceptance_over_many_texts_does_not_fall(case: Case) -> None:
    assert tokens_per_round(case, MANY) >= OF_MANY[case]
