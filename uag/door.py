"""How a call of ours passes through transformers' `generate`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


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
