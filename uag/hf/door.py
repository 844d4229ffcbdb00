"""How a call of ours passes through transformers' `generate`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from transformers.generation.configuration_utils import GenerationMode

from uag.errors import UnsupportedError
from uag.hf.caches import cache_names


def option(model: Any, generation_config: Any, kwargs: dict[str, Any], name: str) -> Any:
    """Return a generation option as `generate` will see it: keyword, then the given config, then the model's own."""
    if name in kwargs:
        return kwargs[name]
    value = getattr(generation_config, name, None)
    return value if value is not None else getattr(model.generation_config, name, None)


def mark_cache(kwargs: dict[str, Any]) -> None:
    """Mark a cache of the caller's own as such, as 5.23 does by itself."""
    for name in cache_names():
        if isinstance(kwargs.get(name), transformers.Cache):
            kwargs[name]._is_user_defined = True


class Door:
    """A callable whose signature transformers can read: `inputs_tensor` is asked for, nothing else is new.

    Args:
        run: the decoding method.
        streamer: handed on, since transformers does not hand it to a callable.
        synced_gpus: handed on likewise.
    """

    def __init__(self, run: Callable[..., Any], streamer: Any, synced_gpus: bool | None = None) -> None:
        self._run = run
        self._streamer = streamer
        self._synced_gpus = synced_gpus

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
        """Decode what transformers has prepared."""
        return self._run(
            model,
            input_ids,
            logits_processor,
            stopping_criteria,
            generation_config,
            inputs_tensor,
            streamer=self._streamer,
            synced_gpus=self._synced_gpus,
            **model_kwargs,
        )


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


def original_generate(kind: type) -> Callable[..., Any]:
    """Return the `generate` of a model class without our hook around it."""
    found: Callable[..., Any] = kind.generate  # type: ignore[attr-defined]
    return getattr(found, "__uag_original__", found)


def refuse_mode(generation_config: Any) -> None:
    """Refuse a prepared call that is neither greedy decoding nor sampling.

    Raises:
        UnsupportedError: beam search and the like.
    """
    mode = generation_config.get_generation_mode()
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        raise UnsupportedError(
            f"Generation mode {mode.value!r} cannot be assisted: only greedy decoding and sampling can. "
            "Drop num_beams (and the like), or call model.generate without custom_generate and assistant."
        )


def refuse_modes(model: Any, config: Any, kwargs: dict[str, Any]) -> None:
    """Refuse what can be told before transformers prepares the call; `refuse_mode` sees the mode itself.

    Raises:
        UnsupportedError: an option asks for another mode.
    """
    for name, plain in (("num_beams", 1), ("prompt_lookup_num_tokens", 0), ("assistant_early_exit", 0)):
        value = option(model, config, kwargs, name)
        if value is not None and value != plain:
            raise UnsupportedError(
                f"{name}={value!r} cannot be assisted: only greedy decoding and sampling can. "
                f"Drop {name}, or call model.generate without an assistant."
            )
    if option(model, config, kwargs, "token_healing"):
        raise UnsupportedError(
            "token_healing=True cannot be assisted: transformers hands the tokenizer that it needs to no callable. "
            "Heal the prompt first (model.heal_tokens(input_ids, tokenizer)), or call model.generate without an "
            "assistant."
        )
