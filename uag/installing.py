"""`uag.install()` and `uag.attach()`: calls of `model.generate` are assisted, whoever makes them."""

import logging
import os
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from uag import forks, generate_hook
from uag.assistant import Assistant
from uag.errors import OptionError, UnsupportedError
from uag.gguf import GgufDraft, is_gguf_name
from uag.hf import wrapped
from uag.hf.required_names import check
from uag.loading import forget_drafts, open_draft
from uag.options import Options, changed

logger = logging.getLogger("uag")

_MAX_PER_PAIR = 8  # assistants per pair: one for each two tokenizers and number of candidates

_assistants: weakref.WeakKeyDictionary[Any, weakref.WeakKeyDictionary[Any, tuple[Any, list[Assistant]]]]
_assistants = weakref.WeakKeyDictionary()  # the assistants by draft and target, with the turn of those who create them

_lock = forks.lock()
_options = Options()  # the options of `install`


def install(**options: Any) -> None:
    """Wrap `GenerationMixin.generate` for the whole process; calling it again only changes the options.

    uag then handles calls with `assistant_model=`, with any two tokenizers, and calls with `prediction=` (see
    docs/free-candidates.md), which need `tokenizer=` if the prediction is text. Every other call passes through
    unchanged: calls without either, calls made for a draft, beams, prompt lookup, multi-token prediction, DFlash, early
    exit, token healing, and model classes that override `generate`. If such a call has a `prediction`, it is left out,
    and a log line says why.

    Args:
        options: those of `uag.Assistant` for the calls that uag handles, such as `draft_independent=True`. One that is
            left out or None keeps its value, until `uninstall` resets all.

    Raises:
        OptionError: an option has the wrong type or value.
        CompatibilityError: this transformers release lacks an internal name that uag needs.
    """
    global _options
    check()
    given = {name: value for name, value in options.items() if value is not None}
    with _lock:
        if given:
            _options = changed(_options, given, "install()")
            _assistants.clear()  # they have the former options
    generate_hook.add_route(_route_installed)


def uninstall() -> None:
    """Restore transformers as it was before `install()`; do nothing if it was not called."""
    global _options
    generate_hook.remove_route(_route_installed)
    with _lock:
        _assistants.clear()
        _options = Options()
    forget_drafts()


def _route_installed(generate: Callable[..., Any], model: Any, /, *args: Any, **kwargs: Any) -> Any:
    if kwargs.get("prediction") is None:
        kwargs.pop("prediction", None)  # `generate` does not know it
        if kwargs.get("assistant_model") is None and len(args) < 2:
            return generate(model, *args, **kwargs)
    options = generate_hook.options_of(model, args, kwargs)
    draft = wrapped.unwrapped(options.get("assistant_model"))
    is_assisted = draft is not None or options.get("prediction") is not None
    reason = generate_hook.reason_against(model, options) if is_assisted else ""
    if isinstance(draft, Assistant):
        raise OptionError("assistant_model is a uag.Assistant. Pass it as custom_generate, or a draft in its place.")
    if not is_assisted or not _can_draft(draft) or reason:
        if isinstance(draft, GgufDraft) or is_gguf_name(draft):
            raise UnsupportedError(f"{draft!r} can assist greedy decoding and sampling; this call is neither.")
        if options.get("prediction") is not None:
            _warn_once(model, reason or "its assistant_model drafts within transformers")
        return _generate_as_is(generate, model, args, kwargs)
    tokenizer, draft_tokenizer = options.pop("tokenizer", None), options.pop("assistant_tokenizer", None)
    options.pop("assistant_model", None)
    draft, draft_tokenizer = open_draft(draft, draft_tokenizer, model, is_kept=True)
    return _assistant(model, draft, tokenizer, draft_tokenizer).generate(model, **options)


def _generate_as_is(generate: Callable[..., Any], model: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run a call without uag, and without a prediction, which only a function of the caller's own may know."""
    if kwargs.get("custom_generate") is None:
        kwargs.pop("prediction", None)
    return generate(model, *args, **kwargs)


def _warn_once(model: Any, reason: str) -> None:
    if reason not in _logged:
        _logged.add(reason)
        logger.warning("A call of %s is not assisted by uag: %s", type(model).__name__, reason)


def _can_draft(draft: Any) -> bool:
    """Whether uag drafts with this value of `assistant_model`; transformers itself handles the others."""
    if draft is None or isinstance(draft, GgufDraft | str | os.PathLike):
        return True
    is_own_kind = draft.__class__.__name__.startswith(("Gemma4Assistant", "Gemma4UnifiedAssistant"))
    return hasattr(draft, "get_output_embeddings") and not is_own_kind


def _assistant(model: Any, draft: Any, tokenizer: Any, draft_tokenizer: Any) -> Assistant:
    """Return the assistant of this pair, which remembers costs and acceptance."""
    is_model = draft is not None and not isinstance(draft, str)
    key = draft if is_model else model
    with _lock:
        length, options = _fixed_length(draft) or _options.num_candidate_tokens, _options
        of_draft = _assistants.setdefault(key, weakref.WeakKeyDictionary())
        turn, known = of_draft.setdefault(model, (forks.turn(), []))
    with turn:  # one thread creates it, which may take seconds, and others that need it wait
        same = [one for one in known if one.tokenizer is tokenizer and one.draft_tokenizer is draft_tokenizer]
        same = [one for one in same if is_model or one.draft == draft]
        assistant = next((one for one in same if one.lookahead.fixed == length), None)
        if assistant is None:
            # A strong reference would keep the draft, which is the key, alive forever.
            draft_proxy = weakref.proxy(draft) if is_model else draft
            tokenizers, options = (draft_tokenizer, tokenizer), replace(options, num_candidate_tokens=length)
            without_draft = replace(options, compile_draft=False)
            try:
                assistant = Assistant(draft_proxy, *tokenizers, options=without_draft if draft is None else options)
            except UnsupportedError as error:  # a draft that cannot draft must not prevent its target from generating
                assistant = Assistant(None, *tokenizers, options=without_draft)
                assistant.draft_refusal = str(error)
            known.append(assistant)
            del known[:-_MAX_PER_PAIR]
    return assistant


def _fixed_length(draft: Any) -> int | None:
    config = getattr(draft, "generation_config", None)
    if getattr(config, "num_assistant_tokens_schedule", None) != "constant":
        return None
    length = getattr(config, "num_assistant_tokens", None)
    return length if isinstance(length, int) and length > 0 else None


_attachments: weakref.WeakKeyDictionary[Any, tuple[Assistant, AbstractContextManager[Any]]]
_attachments = weakref.WeakKeyDictionary()  # each attached model's assistant, and the turn of its calls
_logged: set[str] = set()  # reasons for transformers' own path that were logged


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
    target, drafter = _target_of(model), options.pop("drafter", None)
    known = changed(options.pop("options", None), options, "attach()")
    if isinstance(draft, torch.nn.Module) and target in draft.modules():
        raise OptionError("The draft contains the target, so it cannot be faster. Pass a smaller model.")
    draft, draft_tokenizer = open_draft(draft, draft_tokenizer, target)
    assistant = Assistant(draft, draft_tokenizer, tokenizer, drafter=drafter, options=known)
    assistant.check(target)
    # Overlapping calls cannot share the state of a custom drafter, so they take turns.
    turn = nullcontext() if drafter is None else forks.turn()
    _attachments[target] = assistant, turn
    generate_hook.add_route(_route_attached, is_first=True)
    return assistant


def detach(model: Any) -> None:
    """Undo `uag.attach(model, ...)`; do nothing if the model is not attached."""
    _attachments.pop(_target_of(model), None)
    if not list(_attachments):  # its length counts models that are being deleted
        generate_hook.remove_route(_route_attached)


def _target_of(model: Any) -> Any:
    target = generate_hook.generating_part(model)
    if target is None:
        raise UnsupportedError(
            f"{type(model).__name__!r} is not a transformers model that generates. Pass the model whose generate is "
            "called, for example pipeline.model."
        )
    return target


def _route_attached(generate: Callable[..., Any], model: Any, /, *args: Any, **kwargs: Any) -> Any:
    attachment = _attachments.get(model)
    if attachment is None:
        return generate(model, *args, **kwargs)
    options = generate_hook.options_of(model, args, kwargs)
    has_draft = options.get("assistant_model") is not None
    reason = "it has its own assistant_model=" if has_draft else generate_hook.reason_against(model, options)
    if reason:
        _warn_once(model, reason)
        return _generate_as_is(generate, model, args, kwargs)
    options.pop("assistant_tokenizer", None)  # unused without assistant_model, as in transformers
    assistant, turn = attachment
    with turn:
        return assistant.generate(model, **options)
