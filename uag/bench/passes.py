"""Time and count a model's passes."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from uag.hf.devices import synchronize


def timed(device: torch.device, call: Callable[..., Any], /, **kwargs: Any) -> tuple[Any, float]:
    """Return the result of a call and its seconds, with the device idle before and after."""
    synchronize(device)
    start_s = time.perf_counter()
    returned = call(**kwargs)
    synchronize(device)
    return returned, time.perf_counter() - start_s


@contextmanager
def pass_widths(model: torch.nn.Module) -> Iterator[list[int]]:
    """Collect the number of positions of each forward pass of a model."""
    widths = []

    def note(_: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs = (kwargs.get(name) for name in ("decoder_input_ids", "input_ids", "inputs_embeds"))
        ids = next((tensor for tensor in inputs if tensor is not None), None)
        widths.append((args[0] if ids is None else ids).shape[1])

    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield widths
    finally:
        handle.remove()


def num_candidates(widths: Sequence[int], prompt_width: int) -> int:
    """Return how many candidates the passes of one call verified, per row.

    Each pass has one position in addition to its candidates; the first pass has the prompt's positions instead.

    >>> num_candidates([7 + 2, 1 + 3, 1], prompt_width=7)
    5
    """
    return max(0, sum(widths) - prompt_width - (len(widths) - 1))
