"""Time and count a model's passes."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from uag.hf import models

NUM_TIMED_PASSES = 7
"""Timed passes of each width: increase for steadier medians, decrease to save time."""

NUM_CONTEXT_TOKENS = 64
"""Tokens before the timed passes: increase to include more attention, decrease for models with few positions."""


@torch.no_grad()
def time_passes(model: Any, ids: Sequence[int], widths: Sequence[int]) -> dict[int, float]:
    """Return the median seconds of one forward pass after a short context, by its number of positions.

    The cache grows from pass to pass, so it never needs to be rolled back. Widths that do not fit into the model's
    positions are skipped.
    """
    max_positions = models.max_positions(model)
    context_size = min(NUM_CONTEXT_TOKENS, len(ids), max_positions // 4)
    context = torch.tensor([list(ids[:context_size])], device=model.device)
    name, arguments = "input_ids", {"use_cache": True}
    if model.config.is_encoder_decoder:
        name, arguments["encoder_outputs"] = "decoder_input_ids", model.get_encoder()(input_ids=context)
    medians = {}
    for width in widths:
        num_passes = min(NUM_TIMED_PASSES + 1, (max_positions - context_size) // width)
        if num_passes < 2:
            break
        block = context.repeat(1, -(-width // context_size))[:, :width]
        outputs = model(**{name: context}, **arguments)
        seconds = []
        for _ in range(num_passes):
            kwargs = {name: block, "past_key_values": outputs.past_key_values, **arguments}
            outputs, pass_s = timed(model.device, model, **kwargs)
            seconds.append(pass_s)
        medians[width] = statistics.median(seconds[1:])  # the first pass warms up
    return medians


def timed(device: torch.device, call: Callable[..., Any], /, **kwargs: Any) -> tuple[Any, float]:
    """Return the result of a call and its seconds, with the device idle before and after."""
    synchronize(device)
    start_s = time.perf_counter()
    returned = call(**kwargs)
    synchronize(device)
    return returned, time.perf_counter() - start_s


def synchronize(device: torch.device) -> None:
    """Wait until the device is idle; a CPU always is."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


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
