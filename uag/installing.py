"""`uag.install()`: route `model.generate(assistant_model=...)` through uag wherever uag supports the call."""

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from uag import routing
from uag.assistant import Assistant
from uag.errors import UnsupportedError
from uag.gguf import GgufDraft, is_gguf_name
from uag.hf import door, wrapped
from uag.hf.names import check
from uag.loading import forget_drafts, open_draft
from uag.options import check_options

_MAX_PER_PAIR = 8
"""Maximum number of assistants per pair. Increase to keep what calls with more different tokenizers or numbers of
candidates learned; decrease to save memory."""

_assistants: weakref.WeakKeyDictionary[Any, weakref.WeakKeyDictionary[Any, list[Assistant]]]
_assistants = weakref.WeakKeyDictionary()
"""The assistants by draft and target."""

_lock = threading.Lock()
_options: dict[str, Any] = {"trust_changes": False, "fixed_width": None}
"""The arguments of the last `install`."""


def install(trust_changes: bool | None = None, fixed_width: int | None = None) -> None:
    """Wrap `GenerationMixin.generate` for the whole process; calling it again only changes the options.

    uag then handles calls with `assistant_model=`, with any two tokenizers, and calls with `prediction=` (see
    docs/predictions.md), which need `tokenizer=` if the prediction is text. Every other call passes through unchanged:
    calls without either, calls made for a draft, beams, prompt lookup, multi-token prediction, DFlash, early exit,
    token healing, and model classes that override `generate`.

    Args:
        trust_changes: as in `uag.Assistant`; None keeps the value of the last `install`, at first False.
        fixed_width: as in `uag.Assistant`, for the calls that uag handles; None keeps the last value, at first None.
            `uninstall` resets both.

    Raises:
        OptionError: the width is not a whole number of 2 or more.
        CompatibilityError: this transformers release lacks an internal name that uag needs.
    """
    check()
    given = {"trust_changes": trust_changes, "fixed_width": fixed_width}
    given = {name: value for name, value in given.items() if value is not None}
    check_options(**given)
    with _lock:
        _options.update(given)
    routing.add(_route)


def uninstall() -> None:
    """Restore transformers as it was before `install()`; do nothing if it was not called."""
    routing.remove(_route)
    with _lock:
        _assistants.clear()
        _options.update(trust_changes=False, fixed_width=None)
    forget_drafts()


def _route(generate: Callable[..., Any], model: Any, /, *args: Any, **kwargs: Any) -> Any:
    if kwargs.get("prediction") is None:
        kwargs.pop("prediction", None)  # `generate` does not know it
        if kwargs.get("assistant_model") is None and len(args) < 2:
            return generate(model, *args, **kwargs)
    options = routing.options_of(model, args, kwargs)
    draft = wrapped.unwrapped(options.get("assistant_model"))
    is_assisted = draft is not None or options.get("prediction") is not None
    if not is_assisted or not _can_draft(draft) or door.reason_against(model, options):
        if isinstance(draft, GgufDraft) or is_gguf_name(draft):
            raise UnsupportedError(f"{draft!r} can assist greedy decoding and sampling; this call is neither.")
        return generate(model, *args, **kwargs)
    tokenizer, draft_tokenizer = options.pop("tokenizer", None), options.pop("assistant_tokenizer", None)
    options.pop("assistant_model", None)
    draft, draft_tokenizer = open_draft(draft, draft_tokenizer, model, is_kept=True)
    return _assistant(model, draft, tokenizer, draft_tokenizer).generate(model, **options)


def _can_draft(draft: Any) -> bool:
    """Whether uag drafts with this value of `assistant_model`; transformers itself handles the others."""
    if draft is None or isinstance(draft, GgufDraft | str | os.PathLike):
        return True
    is_own_kind = draft.__class__.__name__.startswith(("Gemma4Assistant", "Gemma4UnifiedAssistant"))
    return hasattr(draft, "get_output_embeddings") and not is_own_kind


def _assistant(model: Any, draft: Any, tokenizer: Any, draft_tokenizer: Any) -> Assistant:
    """Return the assistant of this pair, which remembers costs and acceptance."""
    length = _fixed_length(draft)
    with _lock:
        key = model if draft is None else draft
        known = _assistants.setdefault(key, weakref.WeakKeyDictionary()).setdefault(model, [])
        same = [one for one in known if one.tokenizer is tokenizer and one.draft_tokenizer is draft_tokenizer]
        assistant = next((one for one in same if one.lookahead.fixed == length), None)
        if assistant is None:
            # A strong reference would keep the draft, which is the key, alive forever.
            draft_proxy = None if draft is None else weakref.proxy(draft)
            try:
                assistant = Assistant(draft_proxy, draft_tokenizer, tokenizer, num_candidate_tokens=length)
            except UnsupportedError as error:  # a draft that cannot draft must not prevent its target from generating
                assistant = Assistant(None, draft_tokenizer, tokenizer, num_candidate_tokens=length)
                assistant.draft_refusal = str(error)
            known.append(assistant)
            del known[:-_MAX_PER_PAIR]
        assistant.trust_changes, assistant.fixed_width = _options["trust_changes"], _options["fixed_width"]
    return assistant


def _fixed_length(draft: Any) -> int | None:
    """Return the number of candidates if the draft's generation config sets a constant one, else None."""
    config = getattr(draft, "generation_config", None)
    if getattr(config, "num_assistant_tokens_schedule", None) != "constant":
        return None
    length = getattr(config, "num_assistant_tokens", None)
    return length if isinstance(length, int) and length > 0 else None
