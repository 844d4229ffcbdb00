"""TODO."""

from uag.sampling.choice import Choice, Coupled, Greedy
from uag.sampling.noise import CounterNoise, Noise, NoiseTape, as_default, multinomial_is_argmax
from uag.sampling.rejection import Rejection, draw, proposal_law
from uag.sampling.selector import Selector
from uag.sampling.warpers import DraftRules

__all__ = [
    "Choice",
    "CounterNoise",
    "Coupled",
    "DraftRules",
    "Greedy",
    "Noise",
    "NoiseTape",
    "Rejection",
    "Selector",
    "as_default",
    "draw",
    "multinomial_is_argmax",
    "proposal_law",
]
