"""`uag.attach()`: every `model.generate` of one model is assisted, whoever calls it."""

import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from transformers import GenerationMixin

from uag import routing
from uag.assistant import Assistant
from uag.errors import OptionError, UnsupportedError
from uag.hf import door
from uag.loading import open_draft
from uag.stats import Stats

logger = logging.getLogger("uag")

_MAX_IDLE = 8
"""Maximum number of idle assistants per model. Increase to keep what more overlapping calls learned; decrease to save
memory."""


@dataclass
class Totals:
    """Sums over the assisted calls of an attached model; fields as in `uag.Stats`.

    Attributes:
        num_calls: calls that uag ran.
        num_fallbacks: calls with at least one fall-back.
    """

    num_calls: int = 0
    num_fallbacks: int = 0
    num_output_tokens: int = 0
    num_candidate_tokens: int = 0
    num_accepted_tokens: int = 0
    total_s: float = 0.0

    def add(self, stats: Stats) -> None:
        """Add one call."""
        self.num_calls += 1
        self.num_fallbacks += bool(stats.fallbacks)
        for name in ("num_output_tokens", "num_candidate_tokens", "num_accepted_tokens", "total_s"):
            setattr(self, name, getattr(self, name) + getattr(stats, name))

    def to_dict(self) -> dict[str, Any]:
        """Return the sums, the tokens per second and the acceptance rate as plain data."""
        return asdict(self) | {
            "tokens_per_second": _ratio(self.num_output_tokens, self.total_s),
            "acceptance_rate": _ratio(self.num_accepted_tokens, self.num_candidate_tokens),
        }


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


class _Attachment:
    """The assistants of one attached model, one for each of its overlapping calls."""

    def __init__(self, create: Callable[..., Assistant], has_own_drafter: bool) -> None:
        self.assistant = create()
        self.totals = Totals()
        memory = self.assistant.memory
        self._create = create if memory is None else partial(create, memory=memory)  # memory=True would create others
        self._idle = [self.assistant]
        self._lock = threading.Lock()
        # Overlapping calls cannot share the state of a custom drafter, so they take turns.
        self._turn = threading.RLock() if has_own_drafter else None

    @contextmanager
    def lend(self) -> Iterator[Assistant]:
        """Lend an assistant that no other call uses, then add its call to the totals."""
        if self._turn is not None:
            with self._turn:
                yield from self._counted(self.assistant)
            return
        with self._lock:
            assistant = self._idle.pop() if self._idle else None
        assistant = self._create() if assistant is None else assistant
        try:
            yield from self._counted(assistant)
        finally:
            with self._lock:
                # The last one is lent next: calls that do not overlap use the assistant that `attach` returned.
                self._idle.insert(len(self._idle) if assistant is self.assistant else 0, assistant)
                del self._idle[:-_MAX_IDLE]

    def _counted(self, assistant: Assistant) -> Iterator[Assistant]:
        stats_before = assistant.stats
        try:
            yield assistant
        finally:
            with self._lock:
                if assistant.stats is not stats_before:
                    self.totals.add(assistant.stats)


_attachments: weakref.WeakKeyDictionary[Any, _Attachment] = weakref.WeakKeyDictionary()
_logged: set[str] = set()
"""Reasons for transformers' own path that were logged."""


def attach(model: Any, draft: Any, *, tokenizer: Any = None, draft_tokenizer: Any = None, **options: Any) -> Assistant:
    """Assist every `model.generate` until `uag.detach(model)`, for callers that cannot pass a draft.

    Pipelines, servers, trainers and agents then use the draft as they are. Overlapping calls from several threads each
    get their own assistant over the shared draft; with a custom `drafter=`, they take turns. Calls that cannot be
    assisted run as in transformers, with one log line: beams and other modes, calls with their own `assistant_model` or
    `custom_generate`, and models whose class overrides `generate`. The model itself is not changed: nothing is copied
    or saved with it, and it can be garbage collected.

    Args:
        model: the target; for a wrapper (LoRA, `torch.compile`), the model inside is attached.
        draft: as in `uag.Assistant`. A draft that is passed by name is loaded with the target's dtype and device.
        tokenizer: the target's tokenizer.
        draft_tokenizer: the draft's tokenizer.
        options: other arguments of `uag.Assistant`.

    Returns:
        The assistant of calls that do not overlap. A second `attach` replaces it.

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
    create = partial(Assistant, draft, draft_tokenizer, tokenizer, **options)
    attachment = _Attachment(create, has_own_drafter=options.get("drafter") is not None)
    attachment.assistant._find_drafter(target)
    _attachments[target] = attachment
    routing.add(_route, is_first=True)
    return attachment.assistant


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
    return attachment.totals


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
    with attachment.lend() as assistant:
        return assistant.generate(model, **options)
