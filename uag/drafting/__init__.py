"""Sources of candidates: a draft model, predictions, the memory, the prompt itself, or your own `Drafter`."""

from uag.drafting.constraint import ForcedTokens
from uag.drafting.drafter import Ask, Counts, Drafter, require_drafter
from uag.drafting.known.memory import Memory, as_memory
from uag.drafting.known.source import PromptLookup
from uag.drafting.known.text_drafter import TextDrafter
from uag.drafting.models.base import Passes
from uag.drafting.models.model_drafter import ModelDrafter, draft_steps, run_waves
from uag.drafting.models.own_copy import CopyPairing
from uag.drafting.models.rows import Row, RowMaker, fit_context
from uag.drafting.models.torch_model import TorchPasses
from uag.drafting.models.trials import check_draft
from uag.drafting.pairing import ASSUMED, Pairing, adapter_of, dtypes_of, mismatch_of
from uag.drafting.ranked import FreeFirst
from uag.drafting.session import Session

__all__ = [
    "ASSUMED", "Ask", "CopyPairing", "Counts", "Drafter", "ForcedTokens", "FreeFirst", "Memory", "ModelDrafter",
    "Pairing", "Passes", "PromptLookup", "Row", "RowMaker", "Session", "TextDrafter",
    "TorchPasses", "adapter_of", "as_memory", "check_draft", "draft_steps", "dtypes_of", "fit_context",
    "mismatch_of", "require_drafter", "run_waves",
]  # fmt: skip
