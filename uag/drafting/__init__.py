"""Sources of candidates: the draft model, the prompt itself, or a `Drafter` of your own."""

from uag.drafting.drafter import Ask, Counts, Drafter
from uag.drafting.free import FreeSource
from uag.drafting.free_first import FreeFirst
from uag.drafting.kinds import adapter_for, head_size, open_passes
from uag.drafting.lookup import PromptLookup
from uag.drafting.model import DraftModel
from uag.drafting.model_drafter import ModelDrafter
from uag.drafting.pairing import ASSUMED, Pairing, pair_drafter
from uag.drafting.passes import PassError, Passes
from uag.drafting.predicted import Predictions
from uag.drafting.rows import Row, RowMaker, fit_context
from uag.drafting.text_drafter import TextDrafter
from uag.drafting.timing import time_feeds
from uag.drafting.waves import draft_steps, run_waves

__all__ = [
    "ASSUMED",
    "Ask",
    "Counts",
    "DraftModel",
    "Drafter",
    "FreeFirst",
    "FreeSource",
    "ModelDrafter",
    "Pairing",
    "PassError",
    "Passes",
    "Predictions",
    "PromptLookup",
    "Row",
    "RowMaker",
    "TextDrafter",
    "adapter_for",
    "draft_steps",
    "fit_context",
    "head_size",
    "open_passes",
    "pair_drafter",
    "run_waves",
    "time_feeds",
]
