"""`uag.install()`: `model.generate(assistant_model=...)` goes through uag wherever it can be assisted."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

from uag import compat
from uag.assistant import Assistant
from uag.errors import PairError

_lock = threading.Lock()
_MAX_ASSISTANTS_PER_DRAFT = 8
_assistants: weakref.WeakKeyDictionary[Any, list[tuple[Any, Any, int, Assistant]]] = weakref.WeakKeyDictionary()


def install() -> None:
    """Wrap `GenerationMixin.generate` for the whole process; calling it again does nothing.

    Calls with `assistant_model=` are then drafted by uag, with any tokenizers. All else passes through untouched: calls
    without an assistant, calls made for a draft, beams, prompt lookup, multi-token prediction, DFlash, early exit, and
    model classes with a `generate` of their own.

    Raises:
        CompatibilityError: this transformers release lacks an inner name that uag needs.
    """
    compat.check()
    with _lock:
        mixin = compat.generation_mixin()
        if not hasattr(mixin.generate, "__uag_original__"):
            mixin.generate = _wrap(mixin.generate)


def uninstall() -> None:
    """Restore transformers as it was before `install()`; without it, do nothing."""
    with _lock:
        mixin = compat.generation_mixin()
        original = getattr(mixin.generate, "__uag_original__", None)
        if original is not None:
            mixin.generate = original


def _wrap(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def generate(self: Any, inputs: Any = None, generation_config: Any = None, *args: Any, **kwargs: Any) -> Any:
        draft = kwargs.get("assistant_model")
        if draft is None or args or not _is_ours(self, draft, generation_config, kwargs):
            return original(self, inputs, generation_config, *args, **kwargs)
        assistant = _assistant_for(self, draft, kwargs)
        return assistant.generate(self, inputs, generation_config=generation_config, **kwargs)

    generate.__uag_original__ = original  # type: ignore[attr-defined]
    return generate


def _is_ours(model: Any, draft: Any, generation_config: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a call is plain assisted generation, greedy or sampled."""
    if kwargs.get("custom_generate") is not None or kwargs.get("is_assistant"):
        return False
    if not hasattr(draft, "get_output_embeddings") or "generate" in vars(type(model)):
        return False
    config = generation_config if generation_config is not None else model.generation_config

    def value(name: str) -> Any:
        return kwargs[name] if name in kwargs else getattr(config, name, None)

    if value("is_assistant") or value("prompt_lookup_num_tokens") or value("assistant_early_exit"):
        return False
    if value("use_mtp") or value("speculation_type") or value("penalty_alpha") or (value("num_beams") or 1) > 1:
        return False
    return value("assistant_ensemble_weight") is None


def _assistant_for(model: Any, draft: Any, kwargs: dict[str, Any]) -> Assistant:
    """Return the assistant of a draft and two tokenizers, made at the first call and kept while the draft lives."""
    tokenizer = kwargs.pop("tokenizer", None)
    draft_tokenizer = kwargs.pop("assistant_tokenizer", None)
    if tokenizer is None and draft_tokenizer is None:
        _refuse_unknown_pair(model, draft)
    length = _fixed_length(draft)
    with _lock:
        known = _assistants.setdefault(draft, [])
        for first, second, size, assistant in known:
            if first is tokenizer and second is draft_tokenizer and size == (length or 0):
                return assistant
        assistant = Assistant(weakref.proxy(draft), draft_tokenizer, tokenizer, num_candidate_tokens=length)
        known.append((tokenizer, draft_tokenizer, length or 0, assistant))
        del known[:-_MAX_ASSISTANTS_PER_DRAFT]
        return assistant


def _fixed_length(draft: Any) -> int | None:
    """Return the draft length where the user set a constant schedule on the draft; None lets the rate decide."""
    config = getattr(draft, "generation_config", None)
    if getattr(config, "num_assistant_tokens_schedule", None) != "constant":
        return None
    length = getattr(config, "num_assistant_tokens", None)
    return length if isinstance(length, int) and length > 0 else None


def _refuse_unknown_pair(model: Any, draft: Any) -> None:
    sizes = [m.config.get_text_config(decoder=True).vocab_size for m in (model, draft)]
    if sizes[0] != sizes[1] and not _same_source(model, draft):
        raise PairError(
            f"The target ({type(model).__name__}, {sizes[0]} entries) and the draft ({type(draft).__name__}, {sizes[1]} "
            "entries) may have different tokenizers. Pass both: "
            "model.generate(..., assistant_model=draft, tokenizer=tok, assistant_tokenizer=draft_tok)."
        )


def _same_source(model: Any, draft: Any) -> bool:
    return model is draft


