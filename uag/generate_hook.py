"""The wrapper around `generate`, the options of a call, and checks that reject unsupported calls."""

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
import transformers
from transformers import GenerationMixin, StoppingCriteriaList
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.stopping_criteria import StopStringCriteria

from uag import forks
from uag.errors import CompatibilityError, OptionError, PairError, UnsupportedError
from uag.hf.cache.caches import CACHE_NAMES

_OFF: dict[str, Callable[[Any], bool]] = {
    "num_beams": lambda value: value == 1,
    "prompt_lookup_num_tokens": lambda _: False,  # transformers itself refuses 0
    "dola_layers": lambda _: False,
    "assistant_early_exit": lambda value: value == 0,
    "assistant_ensemble_weight": lambda value: value is None,
    "use_mtp": lambda value: not value,
    "speculation_type": lambda value: not value,
    "constraints": lambda value: not value,
    "force_words_ids": lambda value: not value,
    "token_healing": lambda value: not value,
    "cache_implementation": lambda value: value != "paged",  # continuous batching, which calls no decoding method
}
"""Options that select other decoding modes, with predicates for values that turn them off; None always does."""

Route = Callable[..., Any]
"""Handles a call or passes it on. Its arguments are the next `generate`, the model, and those of the call."""

_SIGNATURE = inspect.signature(GenerationMixin.generate)  # other libraries' wrappers may hide it later

_routes: list[Route] = []
_lock = forks.lock()


def add_route(route: Route, *, is_first: bool = False) -> None:
    """Send every call of `GenerationMixin.generate` in this process through `route`, unless it already does."""
    with _lock:
        if route not in _routes:
            _routes.insert(0 if is_first else len(_routes), route)
        if not hasattr(GenerationMixin.generate, "__uag_original__"):
            GenerationMixin.generate = _routed(GenerationMixin.generate)


def remove_route(route: Route) -> None:
    """Remove a route, and restore the previous `generate` if it was the last route."""
    with _lock:
        if route in _routes:
            _routes.remove(route)
        generate: Any = GenerationMixin.generate
        original = original_generate(GenerationMixin)
        # A wrapper that another library placed around this one may have copied the attribute. It must stay.
        if not _routes and original is not generate and generate.__wrapped__ is original:
            GenerationMixin.generate = original


def _routed(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = original
        for route in reversed(_routes):
            run = functools.partial(route, run)
        return run(self, *args, **kwargs)

    generate.__uag_original__ = original  # type: ignore[attr-defined]
    return generate


def original_generate(kind: type) -> Callable[..., Any]:
    """Return the `generate` of a model class without the wrapper around it."""
    generate: Callable[..., Any] = kind.generate  # type: ignore[attr-defined]
    return getattr(generate, "__uag_original__", generate)


def options_of(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call of `generate` by name."""
    bound = _SIGNATURE.bind(model, *args, **kwargs).arguments
    options: dict[str, Any] = bound.pop("kwargs", {}) | bound
    del options["self"]
    return options


def streamer_of_call(model: Any) -> Any:
    """Return the streamer of the innermost running `generate` call of a model, or None.

    transformers passes a streamer only to its own loops. It is read from the frame of `generate`, by public names.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if _is_generate(frame.f_code) and frame.f_locals["self"] is model:
            return frame.f_locals["streamer"]
        frame = frame.f_back
    return None


def _is_generate(code: Any) -> bool:
    """Whether a function has the parameters by which `streamer_of_call` knows `generate`."""
    parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return {"self", "custom_generate", "streamer"} <= {*parameters}


def check() -> None:
    """Raise a `CompatibilityError` if a call's streamer could not be found."""
    generate = inspect.unwrap(original_generate(GenerationMixin))
    if generate.__module__.startswith("transformers.") and not _is_generate(generate.__code__):
        raise CompatibilityError(
            "GenerationMixin.generate lacks its parameter streamer= or custom_generate=, which uag needs. Install a "
            "release of transformers that uag supports."
        )


def option(model: Any, config: Any, kwargs: dict[str, Any], name: str) -> Any:
    """Return a generation option with `generate`'s precedence: keywords, then the passed config, then the model's."""
    if name in kwargs:
        return kwargs[name]
    value = getattr(config, name, None)
    return value if value is not None else getattr(model.generation_config, name, None)


def take_length(kwargs: dict[str, Any]) -> Any:
    """Pop `num_assistant_tokens` from a call's keywords, or read it from the passed config; None if neither has it.

    The model's own config is ignored, because the caller may be unaware of it, and so is a non-constant schedule.
    """
    config = kwargs.get("generation_config")
    schedule = kwargs.get("num_assistant_tokens_schedule", getattr(config, "num_assistant_tokens_schedule", None))
    length = kwargs.pop("num_assistant_tokens", getattr(config, "num_assistant_tokens", None))
    return length if schedule in (None, "constant") else None


def other_mode(model: Any, config: Any, kwargs: dict[str, Any]) -> str:
    """Return the option (`name=value`) that selects a mode other than greedy decoding or sampling; empty if none."""
    value_of = functools.partial(option, model, config, kwargs)
    for name, is_off in _OFF.items():
        value = value_of(name)
        if value is not None and not is_off(value):
            return f"{name}={value!r}"
    penalty, top_k, do_sample = map(value_of, ("penalty_alpha", "top_k", "do_sample"))
    return f"penalty_alpha={penalty!r}" if penalty and (top_k or 50) > 1 and not do_sample else ""


def reason_against(model: Any, options: dict[str, Any]) -> str:
    """Return why a call of `model.generate` with these options runs as in transformers, or an empty string."""
    if options.get("custom_generate") is not None:
        return "it has its own custom_generate="
    if type(model).generate is not GenerationMixin.generate:
        return f"{type(model).__name__} overrides generate"
    config = options.get("generation_config")
    if option(model, config, options, "is_assistant"):
        return "the model drafts for another"
    return other_mode(model, config, options)


def drop_own(kwargs: dict[str, Any], own: dict[str, Any]) -> None:
    """Drop an assistant's own draft, tokenizer and self from a call's keywords; others raise an `OptionError`."""
    for name, value in own.items():
        if (passed := kwargs.pop(name, None)) is not None and passed is not value:
            raise OptionError(
                f"{name}= was passed to assistant.generate, which uses the assistant's own. Remove it, or create "
                "another uag.Assistant."
            )


def refuse_prepared(model: Any, config: Any) -> None:
    """Raise an `UnsupportedError` for a prepared call that is neither greedy decoding nor sampling."""
    mode = config.get_generation_mode()
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        raise refusal(other_mode(model, config, {}) or f"generation mode {mode.value!r}")


def refusal(setting: str) -> UnsupportedError:
    """Return the error for an option (`name=value`) that selects another mode; the caller need not have passed it."""
    name = setting.partition("=")[0]
    advice = f"Pass {name}={1 if name == 'num_beams' else None}" if name in {*_OFF, "penalty_alpha"} else "Change it"
    return UnsupportedError(
        f"{setting} cannot be assisted: only greedy decoding and sampling can. "
        f"{advice}, or call model.generate without an assistant."
    )


def target_of(model: Any) -> Any:
    """Return the target itself for torch.compile's wrapper, whose `generate` is the target's."""
    if not hasattr(model, "generate") or generating_part(model) is None:
        raise OptionError(
            f"The target comes first, and {type(model).__name__} has no generate method of transformers. Call "
            "assistant.generate(model, **inputs)."
        )
    return model if hasattr(type(model), "generate") else model.generate.__self__


def generating_part(model: Any) -> Any:
    """Return the transformers model whose `generate` a wrapper (LoRA, value head) calls; None if it has none."""
    parts = model.modules() if isinstance(model, torch.nn.Module) else (model,)
    return next((part for part in parts if isinstance(part, GenerationMixin)), None)


def prepare(model: Any, inputs: Any, kwargs: dict[str, Any], tokenizer: Any) -> None:
    """Check and change a call's keywords before transformers prepares it; `refuse_prepared` checks the result."""
    if mode := other_mode(model, kwargs.get("generation_config"), kwargs):
        raise refusal(mode)
    _refuse_empty(model, inputs, kwargs)
    _add_stop_strings(model, kwargs, tokenizer)
    for name in CACHE_NAMES:
        if isinstance(kwargs.get(name), transformers.Cache):  # as transformers itself does since 5.23
            kwargs[name]._is_user_defined = True


def _refuse_empty(model: Any, inputs: Any, kwargs: dict[str, Any]) -> None:
    ids = kwargs.get("input_ids") if inputs is None else inputs
    if model.config.is_encoder_decoder or kwargs.get("inputs_embeds") is not None:
        return
    if isinstance(ids, torch.Tensor) and not ids.numel():
        raise OptionError(
            f"The prompt is empty: input_ids has the shape {tuple(ids.shape)}. Pass at least one id per row, such as "
            "the tokenizer's BOS, or omit input_ids to start from the model's BOS."
        )


def _add_stop_strings(model: Any, kwargs: dict[str, Any], tokenizer: Any) -> None:
    """Convert stop strings to a criterion: transformers passes no tokenizer to a `custom_generate` callable."""
    config = kwargs.get("generation_config")
    strings = option(model, config, kwargs, "stop_strings")
    if strings is None:
        return
    kwargs["stop_strings"] = None
    if config is not None and model.generation_config.stop_strings is None:
        del kwargs["stop_strings"]  # transformers deprecates keywords beside a config
        kwargs["generation_config"] = config = copy.copy(config)
        config.stop_strings = None
    kwargs["stopping_criteria"] = with_stop_strings(kwargs.get("stopping_criteria"), strings, tokenizer)


def with_stop_strings(criteria: Any, strings: Any, tokenizer: Any) -> StoppingCriteriaList:
    """Return criteria with one for stop strings, unless the caller passed one, which transformers would prefer."""
    criteria = StoppingCriteriaList(criteria or [])
    if strings is not None and tokenizer is None:
        raise PairError(
            f"stop_strings={strings!r} requires the target's tokenizer. "
            "Pass it to the assistant: uag.Assistant(draft, draft_tokenizer, tokenizer)."
        )
    if strings is not None and not any(type(each) is StopStringCriteria for each in criteria):
        criteria.append(StopStringCriteria(tokenizer=tokenizer, stop_strings=strings))
    return criteria
