"""Selection of the target's tokens, greedy or sampled."""

from uag.sampling.choice import Choice, make_choice
from uag.sampling.noise import kept_generators, multinomial_is_argmax, row_seed
from uag.sampling.rejection import draw, proposal_probs
from uag.sampling.selector import Selector
from uag.sampling.warpers import DraftRules

__all__ = [
    "Choice", "DraftRules", "Selector", "draw", "kept_generators", "make_choice", "multinomial_is_argmax",
    "proposal_probs", "row_seed",
]  # fmt: skip
