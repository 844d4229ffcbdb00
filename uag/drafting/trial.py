"""One small pass that shows whether a model can draft at all: some read nothing without an image or a voice."""

import weakref
from typing import Any

import torch

from uag.hf import caches, models
from uag.hf.weights import weight_of

_MOST_SHOWN = 120
"""Characters of another's error in a message of ours."""

_known: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""Refusals by the draft's embeddings: a draft may come as a weak proxy, which cannot be a key itself."""


def trial_refusal(model: Any) -> str:
    """Say why two ids cannot be read by a model with nothing beside them; empty where they can.

    Costs one pass over two tokens at the first asking.
    """
    embeddings = model.get_input_embeddings()
    if embeddings not in _known:
        _known[embeddings] = _try(model)
    return _known[embeddings]


def _try(model: Any) -> str:
    device = weight_of(model.get_input_embeddings()).device
    ids = torch.zeros((1, 2), dtype=torch.long, device=device)
    with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):  # dropout draws
        try:
            logits = _run(model, ids)
        except (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            what = " ".join(str(error).split())
            return f"cannot read text with nothing beside it ({type(error).__name__}: {what[:_MOST_SHOWN]})"
    shape = getattr(logits, "shape", None)
    if shape is None or tuple(shape) != (1, 2, models.head_size(model)):
        return f"gives scores of shape {None if shape is None else tuple(shape)} for two tokens of one row"
    return ""


def _run(model: Any, ids: torch.Tensor) -> Any:
    if not model.config.is_encoder_decoder:
        return model(input_ids=ids, past_key_values=caches.dynamic_cache(), use_cache=True, return_dict=True).logits
    mask = torch.ones_like(ids)
    source = model.get_encoder()(input_ids=ids, attention_mask=mask, return_dict=True)
    cache = caches.encoder_decoder_cache()
    given = {"encoder_outputs": source, "attention_mask": mask, "decoder_input_ids": ids, "past_key_values": cache}
    return model(**given, use_cache=True, return_dict=True).logits
