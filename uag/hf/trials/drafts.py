"""Trials of a draft: whether it can draft at all, and whether it can go back to a copied state.

Some models cannot process text without an image or audio, and only a pass shows which inputs a wrapper forwards.
"""

from collections.abc import Sequence
from typing import Any

import torch

from uag.errors import UnsupportedError
from uag.hf import models, wrapped
from uag.hf.cache import caches
from uag.hf.cache.rewinding import RewindableCache
from uag.hf.trials.once import once

_NUM_IDS = 2
"""Number of ids in the trial of reading text."""

_MAX_DIFFERENCE = 0.05
"""Maximum difference between a token's logits after a state and after its copy, relative to the effect of another
context. Increase to tolerate more rounding (half precision needs some); decrease to detect models that ignore part of
the state."""


def check_draft(model: Any) -> None:
    """Refuse a model that cannot draft.

    Raises:
        UnsupportedError: it has no LM head, takes no cache, has a cache or states that cannot be rewound, is split over
            ranks, or requires inputs other than text.
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
            "Use a draft with transformers' dynamic cache."
        )
    if wrapped.cache_name(model) is None:
        raise UnsupportedError(
            f"The draft {name!r} takes no key-value cache: it would re-read the whole text for every candidate. "
            "Use a draft with a cache."
        )
    refused = models.block_refusal(model)
    if refused:
        raise UnsupportedError(f"The draft {name!r} {refused}. Use a draft that reads several tokens in one pass.")
    if models.tensor_parallel_group(model) is not None or models.is_pipelined(model):
        raise UnsupportedError(
            f"The draft {name!r} is split over ranks, and only rank 0 drafts. Load it without tp_plan."
        )
    refused = reading_refusal(model)
    if refused:
        raise UnsupportedError(f"The draft {name!r} {refused}. Use a draft that reads text alone.")
    refused = state_refusal(model)
    if refused:
        raise UnsupportedError(f"The draft {name!r} {refused}. Use a draft whose states are in its cache.")


def reading_refusal(model: Any) -> str:
    """Return why a model cannot process text alone, or an empty string. Runs one pass, once."""
    return once(model, "reading", lambda: _reading(model), lambda why: f"cannot process text alone ({why})")


def _reading(model: Any) -> str:
    ids = torch.zeros((1, _NUM_IDS), dtype=torch.long, device=wrapped.device_of(model))
    cache = caches.dynamic_cache(is_encoder_decoder=model.config.is_encoder_decoder)
    if models.state_layers(model):
        cache = caches.default_cache(model)
    inputs = _inputs(model, ids) | {str(wrapped.cache_name(model)): cache}
    logits = model(**inputs, use_cache=True, return_dict=True).logits
    shape = getattr(logits, "shape", None)
    if shape is None or tuple(shape) != (1, _NUM_IDS, models.head_size(model)):
        return f"returns logits of shape {None if shape is None else tuple(shape)} for one row of two tokens"
    length = caches.length(cache) or (_NUM_IDS if caches.has_recurrent_states(cache) else 0)
    if not length:
        return "stores nothing in the cache passed to it, so it would re-read the whole text for every candidate"
    return "" if length == _NUM_IDS else f"stores {length} positions for two tokens in the cache passed to it"


def _inputs(model: Any, ids: torch.Tensor) -> dict[str, Any]:
    """Return the inputs of a draft's pass."""
    names = wrapped.inputs_of(model)
    inputs: dict[str, Any] = {"logits_to_keep": _NUM_IDS} if "logits_to_keep" in names else {}
    if not model.config.is_encoder_decoder:
        positions = {"position_ids": torch.arange(_NUM_IDS, device=ids.device)[None]}
        return inputs | {"input_ids": ids} | (positions if "position_ids" in names else {})
    mask = torch.ones_like(ids)
    source = model.get_encoder()(input_ids=ids, attention_mask=mask, return_dict=True)
    return inputs | {"encoder_outputs": source, "attention_mask": mask, "decoder_input_ids": ids}


def state_refusal(model: Any) -> str:
    """Return why a model cannot go back to a copy of its states, or an empty string. Runs 12 small passes, once."""
    if not models.state_layers(model):
        return ""
    refusal, _ = _states(model)
    return refusal


def takes_blocks(model: Any) -> bool:
    """Return whether several tokens after a state have the logits of single tokens."""
    _, are_equal = _states(model)
    return are_equal


def _states(model: Any) -> tuple[str, bool]:
    return once(model, "states", lambda: _follow_states(model), lambda why: (f"fails after a state ({why})", False))


def _follow_states(model: Any) -> tuple[str, bool]:
    prefix, ids, others = (models.ordinary_ids(model, 3, part) for part in (2, 3, 4))
    row = RewindableCache(model)

    def last(parts: Sequence[Sequence[int]]) -> torch.Tensor:
        row.cut(row.nearest(len(prefix)))
        for part in parts if row.length else [prefix, *parts]:
            row.save()
            logits = _last_logits(model, part, range(row.length, row.length + len(part)), row.cache)
            row.length += len(part)
        return logits

    expected, other = last([[i] for i in ids]), last([[i] for i in [*others[:-1], ids[-1]]])
    again, block = last([[i] for i in ids]), last([ids])
    most = _MAX_DIFFERENCE * (other - expected).abs().max()
    if not (again - expected).abs().max() < most:
        return "keeps a state outside its cache, which cannot be rewound after a rejected candidate", False
    return "", bool((block - expected).abs().max() < most)


def _last_logits(model: Any, ids: Sequence[int], positions: Sequence[int], cache: Any) -> torch.Tensor:
    """Run a pass over one row and return the logits after its last token, [vocab_size]."""
    device = wrapped.device_of(model)
    inputs = {"input_ids": torch.tensor([ids], device=device), str(wrapped.cache_name(model)): cache}
    if "position_ids" in wrapped.inputs_of(model):
        inputs["position_ids"] = torch.tensor([list(positions)], device=device)
    logits: torch.Tensor = model(**inputs, use_cache=True, return_dict=True).logits
    return logits[0, -1].float()
