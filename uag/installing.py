"""`uag.install()`: route `model.generate(assistant_model=...)` through uag wherever uag supports the call."""

import inspect
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from transformers import GenerationMixin

from uag import routing
from uag.assistant import Assistant
from uag.errors import UnsupportedError
from uag.gguf import GgufDraft, is_gguf_name
from uag.hf import check, door, wrapped
from uag.loading import kept_draft, load_draft_for

_MAX_IDLE_PER_PAIR = 8
"""Maximum number of idle assistants per pair. Increase to keep what more concurrent calls learned; decrease to save
memory."""

_idle: weakref.WeakKeyDictionary[Any, weakref.WeakKeyDictionary[Any, list[Assistant]]] = weakref.WeakKeyDictionary()
"""Assistants between calls, by draft and target."""

_lock = threading.Lock()

_options = {"check_blocks": True, "trust_changes": False}
"""The arguments of the last `install`."""


def install(check_blocks: bool = True, trust_changes: bool = False) -> None:
    """Wrap `GenerationMixin.generate` for the whole process; calling it again only changes the options.

    uag then handles calls with `assistant_model=`, with any two tokenizers, and calls with `prediction=` (see
    docs/predictions.md), which need `tokenizer=` if the prediction is text. Every other call passes through unchanged:
    calls without either, calls made for a draft, beams, prompt lookup, multi-token prediction, DFlash, early exit,
    token healing, and model classes that override `generate`.

    Args:
        check_blocks: as in `uag.Assistant`.
        trust_changes: as in `uag.Assistant`.

    Raises:
        CompatibilityError: this transformers release lacks an internal name that uag needs.
    """
    check()
    with _lock:
        _options.update(check_blocks=check_blocks, trust_changes=trust_changes)
    routing.add(_route)


def uninstall() -> None:
    """Restore transformers as it was before `install()`; do nothing if it was not called."""
    routing.remove(_route)
    with _lock:
        _idle.clear()
        kept_draft.cache_clear()


def _route(generate: Callable[..., Any], model: Any, /, *args: Any, **kwargs: Any) -> Any:
    if kwargs.get("assistant_model") is None and kwargs.get("prediction") is None and len(args) < 2:
        return generate(model, *args, **_without_prediction(kwargs))
    options = routing.options_of(model, args, kwargs)
    draft = wrapped.unwrapped(options.get("assistant_model"))
    is_assisted = draft is not None or options.get("prediction") is not None
    if not is_assisted or not _is_ours(model, draft, options):
        if isinstance(draft, GgufDraft) or is_gguf_name(draft):
            raise UnsupportedError(f"{draft!r} can assist greedy decoding and sampling; this call is neither.")
        return generate(model, *args, **_without_prediction(kwargs))
    tokenizer, draft_tokenizer = options.pop("tokenizer", None), options.pop("assistant_tokenizer", None)
    options.pop("assistant_model", None)
    if isinstance(draft, str | os.PathLike):
        draft, loaded_tokenizer = load_draft_for(model, os.fspath(draft))
        draft_tokenizer = loaded_tokenizer if draft_tokenizer is None else draft_tokenizer
    with _assistant(model, draft, tokenizer, draft_tokenizer) as assistant:
        return assistant.generate(model, **options)


def _without_prediction(options: dict[str, Any]) -> dict[str, Any]:
    """Drop `prediction=`, which `generate` does not accept, unless `custom_generate` does; warn if it is ignored."""
    custom = options.get("custom_generate")
    if "prediction" not in options or (callable(custom) and "prediction" in inspect.signature(custom).parameters):
        return options
    if options["prediction"] is not None:
        reason = "only greedy decoding and sampling use it" if custom is None else "custom_generate does not take it"
        warnings.warn(f"uag: prediction= is not used: {reason}", UserWarning, stacklevel=4)
    return {name: value for name, value in options.items() if name != "prediction"}


def _is_ours(model: Any, draft: Any, options: dict[str, Any]) -> bool:
    """Whether a call is plain generation with a draft or a prediction, greedy or sampled."""
    if options.get("custom_generate") is not None:
        return False
    is_named = isinstance(draft, GgufDraft | str | os.PathLike)
    if not (draft is None or is_named or hasattr(draft, "get_output_embeddings")):
        return False
    if type(model).generate is not GenerationMixin.generate:
        return False
    config = options.get("generation_config")
    if door.option(model, config, options, "is_assistant") or door.other_mode(model, config, options):
        return False
    return not draft.__class__.__name__.startswith(("Gemma4Assistant", "Gemma4UnifiedAssistant"))


@contextmanager
def _assistant(model: Any, draft: Any, tokenizer: Any, draft_tokenizer: Any) -> Iterator[Assistant]:
    """Lend an assistant of this pair: an idle one, which remembers costs and acceptance, or a new one.

    Concurrent calls each get their own.
    """
    length = _fixed_length(draft)
    with _lock:
        key = model if draft is None else draft
        idle = _idle.setdefault(key, weakref.WeakKeyDictionary()).setdefault(model, [])
        assistant = next((one for one in idle if _matches(one, tokenizer, draft_tokenizer, length)), None)
        if assistant is not None:
            idle.remove(assistant)
    if assistant is None:
        # A strong reference would keep the draft, which is the key, alive forever.
        draft_proxy = None if draft is None else weakref.proxy(draft)
        try:
            assistant = Assistant(draft_proxy, draft_tokenizer, tokenizer, num_candidate_tokens=length)
        except UnsupportedError as error:  # a draft that cannot draft must not prevent its target from generating
            assistant = Assistant(None, draft_tokenizer, tokenizer, num_candidate_tokens=length)
            assistant.draft_refusal = str(error)
    assistant.check_blocks, assistant.trust_changes = _options["check_blocks"], _options["trust_changes"]
    try:
        yield assistant
    finally:
        with _lock:
            idle.append(assistant)
            del idle[:-_MAX_IDLE_PER_PAIR]


def _matches(assistant: Assistant, tokenizer: Any, draft_tokenizer: Any, length: int | None) -> bool:
    has_tokenizers = assistant.tokenizer is tokenizer and assistant.draft_tokenizer is draft_tokenizer
    return has_tokenizers and assistant.lookahead.fixed == length


def _fixed_length(draft: Any) -> int | None:
    """Return the number of candidates if the draft's generation config sets a constant one, else None."""
    config = getattr(draft, "generation_config", None)
    if getattr(config, "num_assistant_tokens_schedule", None) != "constant":
        return None
    length = getattr(config, "num_assistant_tokens", None)
    return length if isinstance(length, int) and length > 0 else None
