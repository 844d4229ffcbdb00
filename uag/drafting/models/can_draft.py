"""Which models can draft."""

from typing import Any

from uag.errors import UnsupportedError
from uag.hf import models, wrapped
from uag.hf.trials.drafts import reading_refusal, state_refusal


def check_draft(model: Any) -> None:
    """Refuse a model that cannot draft.

    Raises:
        UnsupportedError: it has no LM head, takes no cache, has a cache that cannot be rewound, is split over ranks, or
            requires inputs other than text.
    """
    name = model.__class__.__name__
    if getattr(model, "get_output_embeddings", lambda: None)() is None or not hasattr(model, "config"):
        raise UnsupportedError(
            f"The draft {name!r} has no language-model head, so it cannot propose tokens. "
            "Load it with AutoModelForCausalLM (or AutoModelForSeq2SeqLM) instead of AutoModel."
        )
    refused = models.default_cache_refusals(model)
    if refused:
        raise UnsupportedError(
            f"The draft {name!r} keeps a state that cannot be rewound after a rejected candidate ({refused}). "
            "Use a draft with another kind of cache."
        )
    if wrapped.cache_name(model) is None:
        raise UnsupportedError(
            f"The draft {name!r} takes no key-value cache: it would re-read the whole text for every candidate. "
            "Use a draft with a cache."
        )
    refused = models.block_refusal(model)
    if refused:
        raise UnsupportedError(f"The draft {name!r} {refused}. Use a draft that reads several tokens in one pass.")
    if models.parallel_groups(model):
        raise UnsupportedError(
            f"The draft {name!r} is split over ranks, and only rank 0 drafts. Load it without tp_plan."
        )
    refused = reading_refusal(model)
    if not refused and models.state_layers(model):
        refused = state_refusal(model)
    if refused:
        raise UnsupportedError(f"The draft {name!r} {refused}. Use a draft that reads text alone.")
