"""The fastest form of a product, found by a short measurement at its first use and remembered for the process."""

import math
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import torch

from uag.hf.locks import ProcessLock
from uag.products.forms import FORMS, Form

MAX_ROWS = 64
"""More rows than this share the reading of the weights well enough in every form."""

_STEPS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, MAX_ROWS)
"""Numbers of rows that are measured; others take the form of the next one. Finer steps cost a measurement each."""

_NUM_TRIALS = 3
"""Products timed per form, of which the fastest counts; the first of all also warms up."""

_SECOND_LOOK_S = 1.0
"""Seconds after which a shape is measured once more, the faster of both counting for each form: a machine that was busy
with something else the first time decides nothing for good."""

_HOPELESS = 1.5
"""Forms that take so many times the best form's time are not timed again."""

_MIN_GAIN, _MIN_GAIN_S = 0.05, 5e-6
"""A form replaces what the layer does only for this share of its time, and these seconds: less is noise, or is lost to
the Python around it."""

_MAX_TIMED = 1 << 25
"""Entries of a matrix that are timed; the output layer of a large vocabulary is timed in part."""


class Shape(NamedTuple):
    """What decides which form is fastest.

    Attributes:
        num_out: rows of the weight matrix.
        num_in: its columns.
        is_transposed: whether it lies in memory column by column, as `Conv1D`'s does.
        dtype: of weights and input.
        num_rows: rows of the input, up to the next number that is measured.
        num_threads: of PyTorch.
    """

    num_out: int
    num_in: int
    is_transposed: bool
    dtype: torch.dtype
    num_rows: int
    num_threads: int


class Choice(NamedTuple):
    """The form chosen for a shape, its seconds, and the seconds of the layer's own form."""

    shape: Shape
    name: str
    chosen_s: float
    as_is_s: float


@dataclass
class _Race:
    """The best time of each form so far."""

    best_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(FORMS, math.inf))
    name: str = ""
    again_at: float = 0.0


_races: dict[Shape, _Race] = {}
_lock = ProcessLock()
_spent = threading.local()


def choices() -> list[Choice]:
    """Return what was chosen in this process so far."""
    found = [Choice(s, race.name, race.best_s[race.name], race.best_s["as is"]) for s, race in list(_races.items())]
    return sorted(found, key=lambda choice: (str(choice.shape.dtype), choice.shape))


def clock() -> float:
    """Return a time in seconds for measuring passes: it stands still while this thread measures products in one."""
    return time.perf_counter() - _measuring_s()


def _measuring_s() -> float:
    seconds: float = getattr(_spent, "seconds", 0.0)
    return seconds


def choose(x: torch.Tensor, weight: torch.Tensor, pages: Sequence[torch.Tensor]) -> Form:
    """Return the form for one product.

    Args:
        x: [num_rows, in], at most `MAX_ROWS` rows.
        weight: [out, in], transposed for `Conv1D`.
        pages: weights of the same shape. They are read in turns, so that none lies in the cache because it was timed
            just before: in a model's pass none does either, unless the model is that small.
    """
    num_rows, num_in = x.shape
    is_transposed = weight.stride(1) != 1
    shape = Shape(weight.shape[0], num_in, is_transposed, weight.dtype, step(num_rows), torch.get_num_threads())
    race = _races.get(shape)
    if race is None or time.perf_counter() > race.again_at:
        race = _measure(shape, x, pages)
    return FORMS[race.name]


def step(num_rows: int) -> int:
    """Return the number of rows that is measured for `num_rows`.

    >>> step(7), step(9)
    (7, 12)
    """
    return next(rows for rows in _STEPS if rows >= num_rows)


def _measure(shape: Shape, x: torch.Tensor, pages: Sequence[torch.Tensor]) -> _Race:
    began = time.perf_counter()
    with _lock:
        race = _races.get(shape, _Race())
        if began > race.again_at:  # else another thread has just measured it
            _run(race, x, pages)
            race.again_at = math.inf if race.again_at else time.perf_counter() + _SECOND_LOOK_S
            _races[shape] = race
    _spent.seconds = _measuring_s() + time.perf_counter() - began
    return race


def _run(race: _Race, x: torch.Tensor, pages: Sequence[torch.Tensor]) -> None:
    parts = [part for page in pages for part in _parts(page)]
    turns, best_s = count(), race.best_s
    racing = list(FORMS)
    for _ in range(_NUM_TRIALS):
        for name in racing:
            part = parts[next(turns) % len(parts)]
            began = time.perf_counter()
            try:
                FORMS[name](x, part, None)
            except RuntimeError:  # this build or processor does not have it
                continue
            best_s[name] = min(best_s[name], time.perf_counter() - began)
        limit = _HOPELESS * min(best_s.values())
        racing = [name for name in racing if best_s[name] <= limit]
    best = min(best_s, key=lambda name: best_s[name])
    gain_s = best_s["as is"] - best_s[best]
    race.name = best if gain_s > max(_MIN_GAIN * best_s["as is"], _MIN_GAIN_S) else "as is"


def _parts(weight: torch.Tensor) -> Iterator[torch.Tensor]:
    """Cut a weight matrix, along its outputs, into parts that are quick to time."""
    num_kept = max(64, _MAX_TIMED // weight.shape[1] // 64 * 64)  # a multiple of the blocks
    if weight.stride(1) != 1 or weight.shape[0] <= num_kept:
        yield weight
        return
    for first in range(0, weight.shape[0] - num_kept + 1, num_kept):
        yield weight[first : first + num_kept]
