"""A model's passes, timed and counted."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import torch

NUM_TIMED_PASSES = 7

NUM_CONTEXT_TOKENS = 64


@torch.no_grad()
def time_passes(model: Any, ids: Sequence[int], widths: Sequence[int]) -> dict[int, float]:
    """Return the median seconds of one forward pass, by its number of positions, behind a short context.

    The cache grows from pass to pass, so that no cache needs to be rewound; `ids` are repeated as often as needed. A
    width for which the model has too few positions is left out.
    """
    device = model.device
    max_positions = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1 << 20
    context_size = min(NUM_CONTEXT_TOKENS, len(ids), max_positions // 4)
    context = torch.tensor([list(ids[:context_size])], device=device)
    medians = {}
    for width in widths:
        num_passes = min(NUM_TIMED_PASSES + 1, (max_positions - context_size) // width)
        if num_passes < 2:
            break
        arguments: dict[str, Any] = {"use_cache": True}
        name = "input_ids"
        if model.config.is_encoder_decoder:
            arguments["encoder_outputs"] = model.get_encoder()(input_ids=context)
            name = "decoder_input_ids"
        outputs = model(**{name: context}, **arguments)
        block = context.repeat(1, -(-width // context_size))[:, :width]
        seconds = []
        for _ in range(num_passes):
            synchronize(device)
            start_s = time.perf_counter()
            outputs = model(**{name: block}, past_key_values=outputs.past_key_values, **arguments)
            synchronize(device)
            seconds.append(time.perf_counter() - start_s)
        medians[width] = statistics.median(seconds[1:])  # the first pass warms up
    return medians


@dataclass
class PassCounter:
    """Count a model's forward passes and the positions that they compute, while used as a context manager.

    `widths` holds the number of positions of each pass; the hook is torch's public one and costs microseconds.
    """

    model: torch.nn.Module
    widths: list[int] = field(default_factory=list)

    def __enter__(self) -> Self:
        """Start to count."""
        self._handle = self.model.register_forward_pre_hook(self._count, with_kwargs=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop to count."""
        self._handle.remove()

    def num_candidate_tokens(self, prompt_width: int) -> int:
        """Return how many candidates the passes verified, per row, after a prompt of `prompt_width` positions.

        Each pass computes one position of its own beside the candidates, except the first, which computes the prompt.
        """
        return max(0, sum(self.widths) - prompt_width - (len(self.widths) - 1))

    def _count(self, _model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for name in ("decoder_input_ids", "input_ids", "inputs_embeds"):
            if kwargs.get(name) is not None:
                self.widths.append(kwargs[name].shape[1])
                return
        self.widths.append(args[0].shape[1])


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished what it was given; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
