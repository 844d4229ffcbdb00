"""Trials of a draft: whether it can draft at all, and whether it can go back to a copied state."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from uag.drafting.models.llama_cpp import check_in_llama
from uag.errors import UnsupportedError
from uag.gguf import GgufDraft
from uag.hf import blocks, models, wrapped
from uag.hf.cache import caches
from uag.hf.cache.book import Book
from uag.hf.inspection import in_evaluation
from uag.hf.trials import once

_MAX_DIFFERENCE = 0.05
"""Difference between a token's logits after a state and after its copy, relative to the effect of another context, that
is treated as rounding."""


def check_draft(model: Any) -> None:
    """Refuse a model, or a GGUF file, that cannot draft, with an `UnsupportedError`."""
    if isinstance(model, GgufDraft):
        if reason := model.unknown:
            check_in_llama(model, reason)
    elif reason := next(filter(None, _refusals(model)), ""):
        raise UnsupportedError(f"The draft {model.__class__.__name__!r} {reason}.")


def _refusals(model: Any) -> Iterator[str]:
    if getattr(model, "get_output_embeddings", lambda: None)() is None or not hasattr(model, "config"):
        yield (
            "has no language-model head, so it cannot propose tokens. Load it with AutoModelForCausalLM (or "
            "AutoModelForSeq2SeqLM) instead of AutoModel"
        )
    refused = models.default_cache_refusals(model)
    yield refused and (
        f"keeps a state that cannot be rewound after a rejected candidate ({refused}). Use a draft with transformers' "
        "dynamic cache"
    )
    if wrapped.cache_name(model) is None:
        yield (
            "takes no key-value cache: it would re-read the whole text for every candidate. Use a draft with a cache"
        )
    refused = blocks.block_refusal(model)
    yield refused and f"{refused}. Use a draft that reads several tokens in one pass"
    if models.tensor_parallel_group(model) is not None or models.is_pipelined(model):
        yield "is split over ranks, and only rank 0 drafts. Load it without tp_plan"
    refused = reading_refusal(model)
    yield refused and f"{refused}. Use a draft that reads text alone"
    refused = _states(model)[0] if models.state_layers(model) else ""
    yield refused and f"{refused}. Use a draft whose states are in its cache"


def reading_refusal(model: Any) -> str:
    """Return why a model cannot process text alone, or an empty string. Runs one pass, once."""
    return once(model, "reading", lambda: _reading(model), lambda why: f"cannot process text alone ({why})")


def _reading(model: Any) -> str:
    has_states, is_encoder_decoder = models.state_layers(model), model.config.is_encoder_decoder
    cache = caches.default_cache(model) if has_states else caches.dynamic_cache(is_encoder_decoder=is_encoder_decoder)
    shape = getattr(_logits(model, [0, 0], 0, cache), "shape", None)
    if shape is None or tuple(shape) != (1, 2, models.head_size(model)):
        return f"returns logits of shape {None if shape is None else tuple(shape)} for one row of two tokens"
    length = caches.length(cache) or (2 if caches.has_recurrent_states(cache) else 0)
    if not length:
        return "stores nothing in the cache passed to it, so it would re-read the whole text for every candidate"
    return "" if length == 2 else f"stores {length} positions for two tokens in the cache passed to it"


def takes_blocks(model: Any) -> bool:
    """Return whether several tokens after a state have the logits of single tokens. Runs 12 small passes, once."""
    return _states(model)[1]


def _states(model: Any) -> tuple[str, bool]:
    """Return why a model cannot go back to a copy of its states, or an empty string, and whether it takes blocks."""
    return once(model, "states", lambda: _follow_states(model), lambda why: (f"fails after a state ({why})", False))


def _follow_states(model: Any) -> tuple[str, bool]:
    prefix, ids, others = (models.ordinary_ids(model, 3, part) for part in (2, 3, 4))
    book = Book(partial(caches.cache_with_states, model), has_states=True)

    def run(part: Sequence[int]) -> torch.Tensor:
        start = len(book.slots[0])
        book.append({0: len(part)})
        logits: torch.Tensor = _logits(model, part, start, book.cache)
        return logits[0, -1].float()

    def last(parts: Sequence[Sequence[int]]) -> torch.Tensor:
        book.cut(0, len(prefix))
        book.tidy()
        book.save()
        return [run(part) for part in parts][-1]

    run(prefix)
    expected, other = last([[i] for i in ids]), last([[i] for i in [*others[:-1], ids[-1]]])
    again, block = last([[i] for i in ids]), last([ids])
    most = _MAX_DIFFERENCE * (other - expected).abs().max()
    if not (again - expected).abs().max() < most:
        return "keeps a state outside its cache, which cannot be rewound after a rejected candidate", False
    return "", bool((block - expected).abs().max() < most)


def _logits(model: Any, ids: Sequence[int], start: int, cache: Any) -> Any:
    """Run a pass over one row, whose first token has the position `start`, and return its logits."""
    names, tokens = wrapped.inputs_of(model), torch.tensor([ids], device=wrapped.device_of(model))
    inputs = {str(wrapped.cache_name(model)): cache, "use_cache": True, "return_dict": True}
    with in_evaluation(model):
        if model.config.is_encoder_decoder:
            mask = torch.ones_like(tokens)
            source = model.get_encoder()(input_ids=tokens, attention_mask=mask, return_dict=True)
            inputs |= {"encoder_outputs": source, "attention_mask": mask, "decoder_input_ids": tokens}
        else:
            positions = torch.arange(start, start + len(ids), device=tokens.device)[None]
            inputs |= {"input_ids": tokens} | ({"position_ids": positions} if "position_ids" in names else {})
        if "logits_to_keep" in names:
            inputs["logits_to_keep"] = len(ids)
        return model(**inputs).logits
