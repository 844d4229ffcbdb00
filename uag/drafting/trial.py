"""One small pass that shows whether a model can draft at all.

Some read nothing without an image or a voice; and what a module around a model hands on is known by a pass alone.
"""

import weakref
from typing import Any

import torch

from uag.hf import caches, models, wrapped
from uag.hf.evaluation import in_evaluation
from uag.hf.undisturbed import kept_random_states

_MOST_SHOWN = 120
"""Characters of another's error in a message of ours."""

_NUM_IDS = 2
"""Ids of the pass: the fewest that are more than one."""

_known: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def trial_refusal(model: Any) -> str:
    """Say why two ids cannot be read by a model with nothing beside them; empty where they can.

    Costs one pass over two tokens at the first asking.
    """
    itself = next(iter(model.modules()))  # a draft may come as a weak proxy, which cannot be a key
    if itself not in _known:
        _known[itself] = _try(model)
    return _known[itself]


def _try(model: Any) -> str:
    device = wrapped.device_of(model)
    ids = torch.zeros((1, _NUM_IDS), dtype=torch.long, device=device)
    cache = caches.encoder_decoder_cache() if model.config.is_encoder_decoder else caches.dynamic_cache()
    with torch.no_grad(), in_evaluation(model), kept_random_states(device):
        try:
            logits = model(**_inputs(model, ids), past_key_values=cache, use_cache=True, return_dict=True).logits
        except (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            what = " ".join(str(error).split())
            return f"cannot read text with nothing beside it ({type(error).__name__}: {what[:_MOST_SHOWN]})"
    shape = getattr(logits, "shape", None)
    if shape is None or tuple(shape) != (1, _NUM_IDS, models.head_size(model)):
        return f"gives scores of shape {None if shape is None else tuple(shape)} for two tokens of one row"
    held = caches.length(cache)
    if not held:
        return "keeps nothing in the cache that it is given: it would read the whole text again for every candidate"
    return "" if held == _NUM_IDS else f"keeps {held} positions of two tokens in the cache that it is given"


def _inputs(model: Any, ids: torch.Tensor) -> dict[str, Any]:
    """Return what a pass of a draft is given."""
    inputs = wrapped.inputs_of(model)
    given: dict[str, Any] = {"logits_to_keep": _NUM_IDS} if "logits_to_keep" in inputs else {}
    if not model.config.is_encoder_decoder:
        positions = {"position_ids": torch.arange(_NUM_IDS, device=ids.device)[None]}
        return given | {"input_ids": ids} | (positions if "position_ids" in inputs else {})
    mask = torch.ones_like(ids)
    source = model.get_encoder()(input_ids=ids, attention_mask=mask, return_dict=True)
    return given | {"encoder_outputs": source, "attention_mask": mask, "decoder_input_ids": ids}
