"""TODO."""

from uag.projection.healing import Projection, num_unfinished
from uag.projection.scoring import ProposalLaw
from uag.projection.tree import DraftRow, Feed, HasPath, Node, Search, link
from uag.projection.vocabulary import SortedBytes, VocabularyMap, vocabulary_map

__all__ = [
    "DraftRow",
    "Feed",
    "HasPath",
    "Node",
    "Projection",
    "ProposalLaw",
    "Search",
    "SortedBytes",
    "VocabularyMap",
    "link",
    "num_unfinished",
    "vocabulary_map",
]
