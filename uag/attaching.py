"""`uag.attach()`: every `model.generate` of one model is assisted, whoever calls it."""

import logging
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from transformers import GenerationMixin

from uag import routing
from uag.assistant import Assistant
from uag.errors import OptionError, UnsupportedError
from uag.hf import door
from uag.loading import open_draft
from uag.stats import Totals

logger = logging.getLogger("uag")


class _Attachment(NamedTuple):
    """An attached model's assistant, and the turn of each of its calls."""

    assistant: Assistant
    turn: AbstractContextManager[Any]


_attachments: weakref.WeakKeyDictionary[Any, _Attachment] = weakref.WeakKeyDictionary()
_logged: set[str] = set()
"""Reasons for transformers' own path that were logged."""


def attach(model: Any, draft: Any, *, tokenizer: Any = None, draft_tokenizer: Any = None, **options: Any) -> Assistant:
    """Assist every `model.generate` until `uag.detach(model)`, for callers that cannot pass a draft.

    Pipelines, servers, trainers and agents then use the draft as they are. Overlapping calls from several threads share
    the draft; with a custom `drafter=`, they take turns. Calls that cannot be assisted run as in transformers, with one
    log line: beams and other modes, calls with their own `assistant_model` or `custom_generate`, and models whose class
    overrides `generate`. The model itself is not changed: nothing is copied or saved with it, and it can be garbage
    collected.

    Args:
        model: the target; for a wrapper (LoRA, `torch.compile`), the model inside is attached.
        draft: as in `uag.Assistant`. A draft that is passed by name is loaded with the target's dtype and device.
        tokenizer: the target's tokenizer.
        draft_tokenizer: the draft's tokenizer.
        options: other arguments of `uag.Assistant`.

    Returns:
        The model's assistant. A second `attach` replaces it.

    Raises:
        UnsupportedError: the model cannot generate, or the draft cannot draft.
        PairError: the models cannot work together, or a tokenizer is missing.
        OptionError: an option has the wrong type or value, or the draft is the target.
        LoadingError: the draft was passed by name and cannot be loaded.

    Example:
        uag.attach(model, "HuggingFaceTB/SmolLM2-135M", tokenizer=tokenizer)
        pipeline("text-generation", model=model, tokenizer=tokenizer)("Once upon a time")
        print(uag.last_stats(model))
    """
    target = _target_of(model)
    if isinstance(draft, torch.nn.Module) and target in draft.modules():
        raise OptionError("The draft contains the target, so it cannot be faster. Pass a smaller model.")
    draft, draft_tokenizer = open_draft(draft, draft_tokenizer, target)
    assistant = Assistant(draft, draft_tokenizer, tokenizer, **options)
    assistant.check(target)
    # Overlapping calls cannot share the state of a custom drafter, so they take turns.
    turn = nullcontext() if options.get("drafter") is None else threading.RLock()
    _attachments[target] = _Attachment(assistant, turn)
    routing.add(_route, is_first=True)
    return assistant


def detach(model: Any) -> None:
    """Undo `uag.attach(model, ...)`; do nothing if the model is not attached."""
    _attachments.pop(_target_of(model), None)
    if not list(_attachments):  # its length counts models that are being deleted
        routing.remove(_route)


def totals_of(model: Any) -> Totals:
    """Return the sums over the assisted calls of an attached model.

    Raises:
        UnsupportedError: the model is not attached.
    """
    attachment = _attachments.get(_target_of(model))
    if attachment is None:
        raise UnsupportedError(f"This {type(model).__name__!r} is not attached. Call uag.attach(model, draft) first.")
    return attachment.assistant.totals


def _target_of(model: Any) -> Any:
    """Return the model whose `generate` a wrapper calls."""
    parts = model.modules() if isinstance(model, torch.nn.Module) else ()
    target = next((part for part in parts if isinstance(part, GenerationMixin)), None)
    if target is None:
        raise UnsupportedError(
            f"{type(model).__name__!r} is not a transformers model that generates. Pass the model whose generate is "
            "called, for example pipeline.model."
        )
    return target


def _route(generate: Callable[..., Any], model: Any, /, *args: Any, **kwargs: Any) -> Any:
    attachment = _attachments.get(model)
    if attachment is None:
        return generate(model, *args, **kwargs)
    options = routing.options_of(model, args, kwargs)
    has_draft = options.get("assistant_model") is not None
    reason = "it has its own assistant_model=" if has_draft else door.reason_against(model, options)
    if reason:
        if reason not in _logged:
            _logged.add(reason)
            logger.warning("A call of an attached %s is not assisted by uag.attach: %s", type(model).__name__, reason)
        return generate(model, *args, **kwargs)
    options.pop("assistant_tokenizer", None)  # unused without assistant_model, as in transformers
    with attachment.turn:
        return attachment.assistant.generate(model, **options)
