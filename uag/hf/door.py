"""How a call of ours passes through transformers' `generate`, and which calls do not."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
import transformers
from transformers import StoppingCriteriaList
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.stopping_criteria import StopStringCriteria

from uag.errors import OptionError, PairError, UnsupportedError
from uag.hf.cache.caches import cache_names

_OFF: dict[str, Callable[[Any], bool]] = {
    "num_beams": lambda value: value == 1,
    "prompt_lookup_num_tokens": lambda _: False,  # 0 is an error of its own in transformers
    "dola_layers": lambda _: False,
    "assistant_early_exit": lambda value: value == 0,
    "assistant_ensemble_weight": lambda value: value is None,
    "use_mtp": lambda value: not value,
    "speculation_type": lambda value: not value,
    "constraints": lambda value: not value,
    "force_words_ids": lambda value: not value,
    "token_healing": lambda value: not value,
}
"""Options that ask for another way to generate, and the values that leave each of them off; None always does."""


class EndingStreamer:
    """A streamer that ends once, also where an error comes first: its consumer may wait in another thread."""

    def __init__(self, streamer: Any) -> None:
        self._streamer = streamer
        self._has_ended = False

    def put(self, value: torch.Tensor) -> None:
        """Hand on ids."""
        self._streamer.put(value)

    def end(self) -> None:
        """End the stream, the first time only."""
        if not self._has_ended:
            self._has_ended = True
            self._streamer.end()


def streamer_of_call() -> Any:
    """Return the streamer of the `generate` call that runs here; None without one.

    transformers hands a streamer to its own loops alone, so `generate(custom_generate=..., streamer=...)` would leave
    its reader waiting. It is read from the frame of the innermost `generate`.
    """
    frame = inspect.currentframe()
    while frame is not None:
        code = frame.f_code
        if code.co_name == "generate" and {"custom_generate", "streamer"} <= {*code.co_varnames}:
            return frame.f_locals.get("streamer")
        frame = frame.f_back
    return None


def original_generate(kind: type) -> Callable[..., Any]:
    """Return the `generate` of a model class without `uag.install()` around it."""
    found: Callable[..., Any] = kind.generate  # type: ignore[attr-defined]
    return getattr(found, "__uag_original__", found)


def option(model: Any, config: Any, kwargs: dict[str, Any], name: str) -> Any:
    """Return a generation option as `generate` will see it: keyword, then the given config, then the model's own."""
    if name in kwargs:
        return kwargs[name]
    value = getattr(config, name, None)
    return value if value is not None else getattr(model.generation_config, name, None)


def take_length(kwargs: dict[str, Any]) -> Any:
    """Take `num_assistant_tokens` of one call out of its keywords, or read it from the given config; None for neither.

    The model's own config does not count, which may come from anywhere; nor does a number that is to vary.
    """
    config = kwargs.get("generation_config")
    schedule = kwargs.get("num_assistant_tokens_schedule", getattr(config, "num_assistant_tokens_schedule", None))
    length = kwargs.pop("num_assistant_tokens", getattr(config, "num_assistant_tokens", None))
    return length if schedule in (None, "constant") else None


def other_mode(model: Any, config: Any, kwargs: dict[str, Any]) -> str:
    """Name the option, with its value, that asks for more than greedy decoding or sampling; empty where none does."""
    return _other_mode(lambda name: option(model, config, kwargs, name))


def _other_mode(value_of: Callable[[str], Any]) -> str:
    for name, is_off in _OFF.items():
        value = value_of(name)
        if value is not None and not is_off(value):
            return f"{name}={value!r}"
    penalty, top_k, do_sample = map(value_of, ("penalty_alpha", "top_k", "do_sample"))
    return f"penalty_alpha={penalty!r}" if penalty and (top_k or 50) > 1 and not do_sample else ""


def refuse_other_mode(model: Any, config: Any, kwargs: dict[str, Any]) -> None:
    """Refuse what can be told before transformers prepares the call; `refuse_prepared` sees the mode itself.

    Raises:
        UnsupportedError: an option asks for another mode.
    """
    found = other_mode(model, config, kwargs)
    if found:
        raise _refusal(found)


def refuse_prepared(config: Any) -> None:
    """Refuse a prepared call that is neither greedy decoding nor sampling.

    Raises:
        UnsupportedError: beam search and the like.
    """
    mode = config.get_generation_mode()
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        raise _refusal(_other_mode(lambda name: getattr(config, name, None)) or f"generation mode {mode.value!r}")


def _refusal(found: str) -> UnsupportedError:
    name = found.partition("=")[0]
    if name == "token_healing":
        return UnsupportedError(
            "token_healing=True cannot be assisted: transformers hands the tokenizer that it needs to no callable. "
            "Heal the prompt first (model.heal_tokens(input_ids, tokenizer)), or call model.generate without an "
            "assistant."
        )
    if name == "prompt_lookup_num_tokens":
        return UnsupportedError(
            f"{found} cannot be combined with an assistant, which looks candidates up in the prompt by itself. Drop "
            "it; uag.Assistant.from_prompt_lookup(tokenizer) uses no other source."
        )
    return UnsupportedError(
        f"{found} cannot be assisted: only greedy decoding and sampling can. "
        f"Drop {name}, or call model.generate without an assistant."
    )


def refuse_empty(model: Any, inputs: Any, kwargs: dict[str, Any]) -> None:
    """Refuse a decoder's prompt without ids, on which plain `generate` raises whatever torch says first.

    Raises:
        OptionError: as said.
    """
    ids = kwargs.get("input_ids") if inputs is None else inputs
    if model.config.is_encoder_decoder or kwargs.get("inputs_embeds") is not None:
        return
    if isinstance(ids, torch.Tensor) and not ids.numel():
        raise OptionError(
            f"The prompt is empty: input_ids has the shape {tuple(ids.shape)}. Give at least one id for each row, such "
            "as the tokenizer's BOS, or leave input_ids out to begin with the model's own."
        )


def mark_cache(kwargs: dict[str, Any]) -> None:
    """Mark a cache of the caller's own as such, as 5.23 does by itself."""
    for name in cache_names():
        if isinstance(kwargs.get(name), transformers.Cache):
            kwargs[name]._is_user_defined = True


def add_stop_strings(model: Any, kwargs: dict[str, Any], tokenizer: Any) -> None:
    """Turn stop strings into a criterion of our own: transformers does not hand a callable the tokenizer.

    Raises:
        PairError: the target's tokenizer is not known.
    """
    strings = option(model, kwargs.get("generation_config"), kwargs, "stop_strings")
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
