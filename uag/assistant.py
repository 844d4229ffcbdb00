"""The assistant: a draft model, the two tokenizers, and the doors through which a target uses them."""

from __future__ import annotations

import functools
import logging
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from transformers import StoppingCriteriaList
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.stopping_criteria import StopStringCriteria

from uag import compat
from uag.adapters import TokenizerAdapter, from_tokenizer
from uag.decoding import Request, decode
from uag.drafter import ModelDrafter, model_drafter
from uag.errors import OptionError, PairError, UnsupportedError
from uag.lookahead import Lookahead
from uag.stats import Stats

logger = logging.getLogger("uag")

_last_stats: weakref.WeakKeyDictionary[Any, Stats] = weakref.WeakKeyDictionary()


class Assistant:
    """Makes a target generate faster with a draft whose tokenizer may differ; the output never changes.

    Args:
        draft: a small causal LM (or an encoder-decoder for encoder-decoder targets); None decodes plainly.
        draft_tokenizer: the draft's tokenizer; may be left out where the draft shares the target's.
        tokenizer: the target's tokenizer; may be left out where the draft shares it.
        num_candidate_tokens: candidates per round; None chooses the number that maximises tokens per second.
        min_confidence: stop drafting a row when the draft's own confidence in all its candidates falls below, 0 to 1.
        max_branches: draft passes per candidate that may leave the most probable path.
        heal: let the draft step back into committed text where its tokens do not end with the target's.
        generator: generator to sample from; None for the device's default, as plain `generate`.

    Raises:
        UnsupportedError: the draft cannot draft (no LM head, recurrent state).
        PairError: the pair cannot work, or a tokenizer is missing.
        OptionError: an option has the wrong type or value.

    Example:
        assistant = uag.Assistant(draft, draft_tokenizer, tokenizer)
        ids = assistant.generate(model, **inputs, max_new_tokens=200)
        ids = model.generate(**inputs, custom_generate=assistant, max_new_tokens=200)
        print(assistant.stats.acceptance_rate)
    """

    def __init__(
        self,
        draft: Any,
        draft_tokenizer: Any = None,
        tokenizer: Any = None,
        *,
        num_candidate_tokens: int | None = None,
        min_confidence: float = 0.0,
        max_branches: int = 2,
        heal: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        compat.check()
        _check_options(num_candidate_tokens, min_confidence, max_branches)
        self.draft = draft
        self.tokenizer = tokenizer
        self.draft_tokenizer = draft_tokenizer
        self.generator = generator
        self.stats = Stats()
        self.lookahead = Lookahead(num_candidate_tokens, min_confidence)
        self._target_adapter: TokenizerAdapter | None = None
        self._drafter: ModelDrafter | None = None
        self._lock = threading.Lock()
        if tokenizer is not None:
            self._target_adapter = from_tokenizer(tokenizer)
        if draft is not None:
            draft_adapter = from_tokenizer(draft_tokenizer) if draft_tokenizer is not None else None
            self._drafter = model_drafter(
                draft, self._target_adapter, draft_adapter, max_branches=max_branches, heal=heal
            )

    # ------------------------------------------------------------------ doors

    def generate(self, model: Any, inputs: torch.Tensor | None = None, **kwargs: Any) -> Any:
        """Generate with `model` as target: everything that `model.generate` takes and returns.

        Args:
            model: the target.
            inputs: as in `model.generate`.
            kwargs: as in `model.generate`; `tokenizer`, `assistant_model` and `assistant_tokenizer` are not needed.

        Raises:
            UnsupportedError: a mode that cannot be assisted (beams), or a cache that cannot be rewound.
            PairError: the draft cannot serve this target.
        """
        for name in ("assistant_model", "assistant_tokenizer", "custom_generate"):
            kwargs.pop(name, None)
        tokenizer = kwargs.pop("tokenizer", None) or self.tokenizer
        config = kwargs.get("generation_config")
        _refuse_modes(model, config, kwargs)
        streamer = kwargs.get("streamer")
        self._add_stop_strings(model, kwargs, tokenizer)
        door = functools.partial(self._decode, streamer=streamer)
        generate = _original_generate(type(model))
        return generate(model, inputs, custom_generate=_Door(door), **kwargs)

    def __call__(
        self,
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        inputs_tensor: torch.Tensor | None = None,
        **model_kwargs: Any,
    ) -> Any:
        """Run as `custom_generate=assistant`; called by transformers.

        Raises:
            UnsupportedError: beams, which transformers lets pass here.
        """
        mode = generation_config.get_generation_mode()
        if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
            raise UnsupportedError(
                f"custom_generate=assistant cannot run generation mode {mode.value!r}: only greedy decoding and sampling "
                "can be assisted. Drop num_beams (and the like), or drop custom_generate."
            )
        return self._decode(
            model, input_ids, logits_processor, stopping_criteria, generation_config, inputs_tensor, **model_kwargs
        )

    # ------------------------------------------------------------------ the call

    def _decode(
        self,
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        inputs_tensor: torch.Tensor | None = None,
        synced_gpus: bool = False,
        streamer: Any = None,
        **model_kwargs: Any,
    ) -> Any:
        stats = Stats()
        drafter = self._drafter
        if drafter is not None:
            drafter = self._check_pair(model, drafter)
            stats.strategy = drafter.strategy
        maps = drafter.maps if drafter is not None else None
        request = Request(
            model,
            input_ids,
            logits_processor,
            stopping_criteria,
            generation_config,
            model_kwargs,
            streamer,
            inputs_tensor if model.config.is_encoder_decoder else None,
            self.generator,
            maps.target_sorted if maps is not None else None,
            self._target_adapter.token_bytes if self._target_adapter is not None else (),
        )
        if not self._lock.acquire(blocking=False):
            raise UnsupportedError(
                "This assistant is in the middle of another call (another thread, or a generate inside a callback). "
                "Make one uag.Assistant per thread: they can share the draft model."
            )
        before = (drafter.num_forwards, drafter.seconds, drafter.num_tokens) if drafter is not None else (0, 0.0, 0)
        try:
            if drafter is not None:
                drafter.prepare(logits_processor, stopping_criteria)
            return decode(request, drafter, self.lookahead, stats)
        finally:
            if drafter is not None:
                stats.num_draft_forwards = drafter.num_forwards - before[0]
                stats.draft_forward_s = drafter.seconds - before[1]
                stats.num_draft_tokens = drafter.num_tokens - before[2]
            self.stats = stats
            _last_stats[model] = stats
            self._lock.release()
            if logger.isEnabledFor(logging.INFO):
                logger.info(stats.summary())
            for reason in stats.fallbacks:
                _warn_once(reason)

    def _check_pair(self, model: Any, drafter: ModelDrafter) -> ModelDrafter:
        """Refuse, before any work, a target that this draft cannot serve.

        Raises:
            PairError: the tokenizers are unknown and the vocabularies cannot be the same, or a decoder-only draft
                meets an encoder-decoder target.
            UnsupportedError: the target cannot be rewound.
        """
        if getattr(model, "_is_stateful", False):
            raise UnsupportedError(
                f"The target {type(model).__name__!r} keeps a recurrent state that cannot be rewound after a rejected "
                "candidate, so it cannot be assisted. Call generate without an assistant."
            )
        if drafter.maps is None:
            target_size = model.config.get_text_config(decoder=True).vocab_size
            if self._target_adapter is None and target_size != drafter.model.vocab_size:
                raise PairError(
                    f"No tokenizers were given, and the vocabulary sizes differ ({target_size} for the target, "
                    f"{drafter.model.vocab_size} for the draft), so it cannot be told whether ids mean the same. "
                    "Pass both: uag.Assistant(draft, draft_tokenizer, tokenizer)."
                )
        if drafter.model.is_encoder_decoder and not model.config.is_encoder_decoder:
            raise PairError(
                f"The draft {type(self.draft).__name__!r} is an encoder-decoder and the target "
                f"{type(model).__name__!r} is not. Use a decoder-only draft."
            )
        return drafter

    @staticmethod
    def _add_stop_strings(model: Any, kwargs: dict[str, Any], tokenizer: Any) -> None:
        """Turn stop strings into a criterion of our own: transformers does not hand a callable the tokenizer."""
        config = kwargs.get("generation_config")
        strings = kwargs.pop("stop_strings", None)
        if strings is None:
            for source in (config, None if config is not None else model.generation_config):
                strings = strings or getattr(source, "stop_strings", None)
            if strings is None:
                return
            kwargs["stop_strings"] = None
        if tokenizer is None:
            raise PairError(
                f"stop_strings={strings!r} need the target's tokenizer. "
                "Pass it: uag.Assistant(draft, draft_tokenizer, tokenizer)."
            )
        criteria = StoppingCriteriaList(kwargs.get("stopping_criteria") or [])
        criteria.append(StopStringCriteria(tokenizer=tokenizer, stop_strings=strings))
        kwargs["stopping_criteria"] = criteria

    def __repr__(self) -> str:
        draft = type(self.draft).__name__ if self.draft is not None else None
        strategy = self._drafter.strategy if self._drafter is not None else "plain"
        return f"Assistant(draft={draft}, strategy={strategy!r})"


class _Door:
    """A callable whose signature transformers can read: `inputs_tensor` is asked for, nothing else is new."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run

    def __call__(
        self,
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        inputs_tensor: torch.Tensor | None = None,
        **model_kwargs: Any,
    ) -> Any:
        return self._run(
            model, input_ids, logits_processor, stopping_criteria, generation_config, inputs_tensor, **model_kwargs
        )


def last_stats(model: Any) -> Stats:
    """Return the statistics of a target's last assisted call.

    Raises:
        UnsupportedError: the model has not generated with uag.
    """
    found = _last_stats.get(model)
    if found is None:
        raise UnsupportedError(
            f"No assisted call of this {type(model).__name__!r} is on record. Generate with uag first: "
            "uag.install(); model.generate(..., assistant_model=draft)."
        )
    return found


def _original_generate(kind: type) -> Callable[..., Any]:
    """Return the `generate` of a model class without our hook around it."""
    found: Callable[..., Any] = kind.generate  # type: ignore[attr-defined]
    return getattr(found, "__uag_original__", found)


def _refuse_modes(model: Any, config: Any, kwargs: dict[str, Any]) -> None:
    for name, plain in (("num_beams", 1), ("prompt_lookup_num_tokens", None), ("penalty_alpha", None)):
        value = kwargs.get(name, getattr(config or model.generation_config, name, None))
        if value is not None and value != plain:
            raise UnsupportedError(
                f"{name}={value!r} cannot be assisted: only greedy decoding and sampling can. "
                f"Drop {name}, or call model.generate without an assistant."
            )


def _check_options(num_candidate_tokens: Any, min_confidence: Any, max_branches: Any) -> None:
    if num_candidate_tokens is not None and (not isinstance(num_candidate_tokens, int) or num_candidate_tokens < 1):
        raise OptionError(f"num_candidate_tokens={num_candidate_tokens!r} must be a whole number of 1 or more, or None.")
    if not isinstance(min_confidence, (int, float)) or not 0.0 <= min_confidence < 1.0:
        raise OptionError(f"min_confidence={min_confidence!r} must be a number from 0 to below 1.")
    if not isinstance(max_branches, int) or max_branches < 0:
        raise OptionError(f"max_branches={max_branches!r} must be a whole number of 0 or more.")


_warned: set[str] = set()


def _warn_once(reason: str) -> None:
    if reason not in _warned:
        _warned.add(reason)
        warnings.warn(f"uag: {reason}", UserWarning, stacklevel=5)


