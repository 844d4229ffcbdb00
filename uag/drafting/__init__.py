"""TODO."""

from uag.drafting.drafter import Drafter, GoOn, LawFactory
from uag.drafting.lookup import PromptLookup
from uag.drafting.lookup_first import LookupFirst
from uag.drafting.model import DraftModel, check_draft
from uag.drafting.model_drafter import model_drafter
from uag.drafting.pairing import ASSUMED, pair_drafter
from uag.drafting.rows import Row, RowMaker, fit_context, pair_maps
from uag.drafting.waves import draft_steps, run_waves

__all__ = [
    "ASSUMED",
    "DraftModel",
    "Drafter",
    "GoOn",
    "LawFactory",
    "LookupFirst",
    "PromptLookup",
    "Row",
    "RowMaker",
    "check_draft",
    "draft_steps",
    "fit_context",
    "model_drafter",
    "pair_drafter",
    "pair_maps",
    "run_waves",
]
