"""`uag.install()`: `model.generate(assistant_model=...)` goes through uag wherever it can be assisted."""

import functools
import inspect
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from transformers import GenerationMixin

from uag.assistant import Assistant
from uag.errors import UnsupportedError
from uag.gguf import GgufDraft, is_gguf_name
from uag.hf import check, door, wrapped
from uag.loading import kept_draft, load_draft_for

_MAX_IDLE_PER_PAIR = 8
"""Assistants kept for a pair: more remember what overlapping calls learnt, and hold more tables."""

_Idle = list[tuple[Any, Any, int | None, Assistant]]
_idle: weakref.WeakKeyDictionary[Any, weakref.WeakKeyDictionary[Any, _Idle]] = weakref.WeakKeyDictionary()
"""Assistants that wait for their next call, by draft and target: (tokenizer, draft tokenizer, length, assistant)."""

_lock = threading.Lock()

_options = {"check_blocks": True, "trust_changes": False}
"""What `install` was told."""


def install(check_blocks: bool = True, trust_changes: bool = False) -> None:
    """Wrap `GenerationMixin.generate` for the whole process; calling it again changes nothing but the options.

    Calls with `assistant_model=` are then drafted by uag, with any tokenizers, and calls with `prediction=` follow it
    (see docs/predictions.md), with `tokenizer=` where it is text. All else passes through untouched: calls without
    either, calls made for a draft, beams, prompt lookup, multi-token prediction, DFlash, early exit,
    token healing, and model classes with a `generate` of their own.

    Args:
        check_blocks: as in `uag.Assistant`.
        trust_changes: as in `uag.Assistant`.

    Raises:
        CompatibilityError: this transformers release lacks an inner name that uag needs.
    """
    check()
    with _lock:
        _options.update(check_blocks=check_blocks, trust_changes=trust_changes)
        if not hasattr(GenerationMixin.generate, "__uag_original__"):
            GenerationMixin.generate = _wrap(GenerationMixin.generate)


def uninstall() -> None:
    """Restore transformers as it was before `install()`; without it, do nothing."""
    with _lock:
        original = getattr(GenerationMixin.generate, "__uag_original__", None)
        if original is not None:
            GenerationMixin.generate = original
        _idle.clear()
        _opened.cache_clear()
        kept_draft.cache_clear()


def _wrap(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("assistant_model") is None and kwargs.get("prediction") is None and len(args) < 2:
            return original(self, *args, **_without_prediction(kwargs))
        bound = signature.bind(self, *args, **kwargs).arguments
        options = bound.pop("kwargs", {}) | bound
        del options["self"]
        draft = _named(wrapped.unwrapped(options.get("assistant_model")))
        is_asked = draft is not None or options.get("prediction") is not None
        if not is_asked or not _is_ours(self, draft, options):
            if isinstance(draft, GgufDraft):
                raise UnsupportedError(f"{draft!r} can assist greedy decoding and sampling, and this call is neither.")
            return original(self, *args, **_without_prediction(kwargs))
        tokenizer, draft_tokenizer = options.pop("tokenizer", None), options.pop("assistant_tokenizer", None)
        options.pop("assistant_model", None)
        if isinstance(draft, str | os.PathLike):
            draft, own_tokenizer = load_draft_for(self, os.fspath(draft))
            draft_tokenizer = own_tokenizer if draft_tokenizer is None else draft_tokenizer
        with _assistant(self, draft, tokenizer, draft_tokenizer) as assistant:
            return assistant.generate(self, **options)

    generate.__uag_original__ = original  # type: ignore[attr-defined]
    return generate


def _without_prediction(options: dict[str, Any]) -> dict[str, Any]:
    """Return what `generate` understands: a prediction is for us, or for an assistant that generates."""
    custom = options.get("custom_generate")
    if "prediction" not in options or (callable(custom) and "prediction" in inspect.signature(custom).parameters):
        return options
    if options["prediction"] is not None:
        follows = (
            "only greedy decoding and sampling can follow one" if custom is None else "this custom_generate takes none"
        )
        warnings.warn(f"uag: prediction= is not used: {follows}", UserWarning, stacklevel=3)
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


@lru_cache(maxsize=4)
def _opened(name: str) -> GgufDraft:
    """Return the draft of a name: the same one for the next calls, which find its assistant by it."""
    return GgufDraft(name)


def _named(draft: Any) -> Any:
    """Return the draft in a GGUF file where its name was given; anything else as it is."""
    return _opened(os.fspath(draft)) if is_gguf_name(draft) else draft


@contextmanager
def _assistant(model: Any, draft: Any, tokenizer: Any, draft_tokenizer: Any) -> Iterator[Assistant]:
    """Lend an assistant of this pair: one that an earlier call has left, else a new one.

    What it learnt of costs and acceptance serves the pair's next call. Calls that overlap get one each.
    """
    length = _fixed_length(draft)
    assistant = None
    with _lock:
        key = model if draft is None else draft
        idle = _idle.setdefault(key, weakref.WeakKeyDictionary()).setdefault(model, [])
        for place, (first, second, size, waiting) in enumerate(idle):
            if first is tokenizer and second is draft_tokenizer and size == length:
                assistant = waiting
                del idle[place]
                break
    if assistant is None:
        # A strong reference from here would keep the draft, which is the key, alive for ever.
        try:
            own = None if draft is None else weakref.proxy(draft)
            assistant = Assistant(own, draft_tokenizer, tokenizer, num_candidate_tokens=length)
        except UnsupportedError as error:  # a draft that cannot draft must not keep its target from writing
            assistant = Assistant(None, None, tokenizer)
            assistant.draft_refusal = str(error)
    assistant.check_blocks, assistant.trust_changes = _options["check_blocks"], _options["trust_changes"]
    try:
        yield assistant
    finally:
        with _lock:
            idle.append((tokenizer, draft_tokenizer, length, assistant))
            del idle[:-_MAX_IDLE_PER_PAIR]


def _fixed_length(draft: Any) -> int | None:
    """Return the draft length where the user set a constant schedule on the draft; None lets the rate decide."""
    config = getattr(draft, "generation_config", None)
    if getattr(config, "num_assistant_tokens_schedule", None) != "constant":
        return None
    length = getattr(config, "num_assistant_tokens", None)
    return length if isinstance(length, int) and length > 0 else None
