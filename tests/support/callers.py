"""What callers bring: processors, criteria, streamers, a drafter that knows the output; and counts of passes."""

import inspect
import random
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from itertools import count
from typing import Any

import torch
from transformers import LogitsProcessor, StoppingCriteria
from transformers.generation.streamers import BaseStreamer

from uag.drafting import Ask, Drafter
from uag.kernels import Decoder, decoder_of
from uag.proposal import Proposal


class EndsAt(StoppingCriteria):
    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return torch.full((len(input_ids),), input_ids.shape[1] >= self.length)


class OracleDrafter(Drafter):
    """Proposes the target's output, with about every `spoil`-th id replaced by a wrong one.

    Args:
        outputs: the target's continuation of each row.
        vocab_size: size of the target's head.
        spoil: one id in this many is wrong; 0 for none, 1.4 for most.
    """

    strategy = "oracle"

    def __init__(self, outputs: Sequence[Sequence[int]], vocab_size: int, spoil: float = 5) -> None:
        self.outputs = outputs
        self.vocab_size = vocab_size
        self.spoil = spoil
        self.seen: list[list[int]] = []
        self.prompts: list[list[int]] = []
        self.is_running = False

    def start(self, prompts: Sequence[Sequence[int]], source_ids: Sequence[Sequence[int]] | None = None) -> None:
        self.prompts = [list(prompt) for prompt in prompts]
        self.seen = [[] for _ in prompts]
        self.is_running = True

    def propose(self, ask: Ask) -> list[list[Proposal]]:
        return [self._row(row, limit) for row, limit in enumerate(ask.limits)]

    def _row(self, row: int, limit: int) -> list[Proposal]:
        known, done = self.outputs[row], len(self.seen[row])
        assert self.seen[row] == list(known[:done]), "the drafter got other ids than plain decoding writes"
        return [Proposal(self._id(row, place), 0.9) for place in range(done, min(done + limit, len(known)))]

    def _id(self, row: int, place: int) -> int:
        right = self.outputs[row][place]
        is_spoiled = self.spoil and random.Random(place * 31 + row).random() < 1 / self.spoil
        return (right + 1 + place) % self.vocab_size if is_spoiled else right

    def accept(self, row: int, num_accepted: int, output_ids: Sequence[int]) -> None:
        self.seen[row].extend(output_ids)

    def release(self) -> None:
        self.is_running = False


def raises_at(
    length: int, error: type[BaseException] = ValueError, place: str = "logits_processor"
) -> Callable[..., Any]:
    """Return a logits processor or stopping criterion that raises when rows have this length."""

    def process(input_ids: torch.Tensor, scores: Any, **_: Any) -> Any:
        if input_ids.shape[1] >= length:
            raise error("the user's own error")
        return scores if place == "logits_processor" else torch.zeros(input_ids.shape[0], dtype=torch.bool)

    return process


def failing_after(num_calls: int, function: Callable[..., Any], error: Exception) -> Callable[..., Any]:
    """Return `function` with the same result for `num_calls` calls; all further calls raise."""
    calls = count()

    def fails(*arguments: Any, **options: Any) -> Any:
        if next(calls) >= num_calls:
            raise error
        return function(*arguments, **options)

    return fails


class Puts(BaseStreamer):
    def __init__(self, fail_at: int = -1) -> None:
        self.puts: list[tuple[list[Any], torch.dtype, str]] = []
        self.num_ends = 0
        self.fail_at = fail_at

    def put(self, value: torch.Tensor) -> None:
        if len(self.puts) == self.fail_at:
            raise ConnectionError("the reader has gone")
        self.puts.append((value.tolist(), value.dtype, value.device.type))

    def end(self) -> None:
        self.num_ends += 1


class Watches(StoppingCriteria):
    """A caller's criterion that never ends a row."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


class Looks(LogitsProcessor):
    """A caller's processor that changes nothing, but makes rows advance in lockstep."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores


def count_calls(module: Any, function: Callable[[], Any]) -> tuple[Any, int]:
    count = 0

    forward = module.forward

    @wraps(forward)
    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        return forward(*arguments, **options)

    module.forward = counted
    try:
        return function(), count
    finally:
        del module.forward


def count_passes(target: Any, function: Callable[[], Any]) -> tuple[Any, int]:
    """Run `function` and count the passes of the target in it, by its forward or in one call."""
    codes, count = (inspect.unwrap(type(target).forward).__code__, Decoder.run.__code__), 0
    runs = target, decoder_of(target, "model")

    def trace(frame: Any, event: str, _: Any) -> None:  # called for Python functions only, and without their returns
        nonlocal count
        count += frame.f_code in codes and any(frame.f_locals["self"] is each for each in runs)

    sys.settrace(trace)
    try:
        return function(), count
    finally:
        sys.settrace(None)
