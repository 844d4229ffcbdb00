"""Chooses a target token from the draft's next-token distribution, with bytes and NumPy, without torch."""

from uag.projection.healing import Projection, num_unfinished
from uag.projection.pair import TokenizerPair
from uag.projection.scoring import Scoring
from uag.projection.shortlists import shortlist
from uag.projection.tree import DraftRow, Feed, FloatArray, HasPath, Node, Search, forget_before, link

__all__ = [
    "DraftRow", "Feed", "FloatArray", "HasPath", "Node", "Projection", "Scoring", "Search", "TokenizerPair",
    "forget_before", "link", "num_unfinished", "shortlist",
]  # fmt: skip
