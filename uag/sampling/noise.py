"""The sampling noise that the target and the draft share.

`torch.multinomial(probs, 1)` is `argmax(probs / noise)` with `noise = empty_like(probs).exponential_()` (the Gumbel-max
trick). The noise of each output step is drawn once, in step order, from a copy of the generator of plain decoding. The
target selects with it, and the draft proposes with it. Such a coupling accepts at least (1 - TV) / (1 + TV), the best
possible if the output does not depend on the draft (Daliri et al., arXiv:2408.07978).

Other threads may draw from the caller's generator at any time, so it is only ever advanced, never set back.
"""

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import blake2b
from typing import Any

import torch

from uag import forks
from uag.hf.devices import default_generator

_MAX_KEPT_BYTES = 1 << 28  # noise kept for rows that lag behind; older draws are repeated when needed
_MIN_KEPT_STEPS = 8  # steps to keep, at least, so that blocks repeat no draws

_holders: "weakref.WeakValueDictionary[torch.Generator, NoiseTape]" = weakref.WeakValueDictionary()
"""The call that follows each generator, for calls that overlap in several threads; one may end without `finish`."""

_lock = forks.lock()


def _forget_other_threads() -> None:
    for generator, holder in list(_holders.items()):
        if holder._thread != threading.get_ident():
            del _holders[generator]


forks.in_child(_forget_other_threads)


class NoiseTape:
    """The draws of plain sampling, which draws for all rows at every step, kept until every row has used them."""

    def __init__(self, batch_size: int, vocab_size: int, device: torch.device, generator: torch.Generator) -> None:
        self.batch_size = batch_size
        self.vocab_size = vocab_size
        self.dtype = torch.float32
        self.device = device
        self.generator = generator
        self._own = torch.Generator(device)
        self._thread = threading.get_ident()
        # Nested calls draw in turn, as in plain decoding. Only calls in other threads would draw the same numbers.
        with _lock:
            self._is_alone = _holders.setdefault(self.generator, self)._thread == self._thread
        if self._is_alone:
            self._own.set_state(self.generator.get_state())
        else:
            seed = torch.randint(1 << 62, (1,), device=device, generator=self.generator)
            self._own.manual_seed(int(seed.item()))
        self._drawn: dict[int, torch.Tensor] = {}
        self._states: dict[int, torch.Tensor] = {0: self._own.get_state()}
        self._next = 0
        self._num_moved = 0  # steps that the caller's generator has been advanced by, and its state then
        self._moved = self._states[0]

    def at(self, step: int) -> torch.Tensor:
        """Return the noise of an output step, [batch_size, vocab_size], after drawing all steps before it in order."""
        if step >= self._next:
            self._own.set_state(self._states[self._next])
            while self._next <= step:
                self._draw(self._next)
                self._next += 1
                self._states[self._next] = self._own.get_state()
        elif step not in self._drawn:
            self._own.set_state(self._states[step])
            self._draw(step)
        return self._drawn[step]

    def _draw(self, step: int) -> None:
        noise = self._empty()
        self._drawn[step] = noise.exponential_(generator=self._own)
        num_kept = max(_MIN_KEPT_STEPS, _MAX_KEPT_BYTES // max(noise.nbytes, 1))
        while len(self._drawn) > num_kept:
            del self._drawn[next(iter(self._drawn))]

    def _empty(self) -> torch.Tensor:
        return torch.empty((self.batch_size, self.vocab_size), dtype=self.dtype, device=self.device)

    def fit(self, step: int, vocab_size: int, dtype: torch.dtype) -> None:
        """Draw for probabilities of this width and dtype from `step` on."""
        if (vocab_size, dtype) != (self.vocab_size, self.dtype):
            self.vocab_size, self.dtype = vocab_size, dtype
            self._void(step)

    def release(self, before: int) -> None:
        """Free the steps before `before`, except for the state that the next draw needs."""
        _drop(self._drawn, lambda step: step < before)
        _drop(self._states, lambda step: step < min(before, self._next))

    @contextmanager
    def exposed(self, step: int) -> Iterator[None]:
        self._move(step)
        try:
            yield
        finally:
            state = self.generator.get_state()
            if self._is_alone and not torch.equal(state, self._states[step]):
                self._void(step)  # noise that was drawn ahead is drawn again when needed
                self._states[step] = self._moved = state

    def _void(self, step: int) -> None:
        _drop(self._drawn, lambda drawn: drawn >= step)
        _drop(self._states, lambda later: later > step)
        self._next = min(self._next, step)

    def _move(self, step: int) -> None:
        """Advance the caller's generator to its state before `step`, or as far if other code has drawn from it."""
        if not self._is_alone or step <= self._num_moved:
            return
        if step > self._next:
            self.at(step - 1)
        if torch.equal(self.generator.get_state(), self._moved):
            self.generator.set_state(self._states[step])
            self._moved = self._states[step]
        else:  # setting its state would let other code draw the same numbers again
            for _ in range(step - self._num_moved):
                self._empty().exponential_(generator=self.generator)
            self._moved = self.generator.get_state()
        self._num_moved = step

    def finish(self, num_steps: int) -> None:
        """Advance the caller's generator to its state after plain decoding's step `num_steps` and free all noise."""
        self._move(num_steps)
        self._drawn.clear()
        if _holders.get(self.generator) is self:
            del _holders[self.generator]


def _drop(by_step: dict[int, torch.Tensor], is_dropped: Callable[[int], bool]) -> None:
    for step in filter(is_dropped, list(by_step)):
        del by_step[step]


@cache
def multinomial_is_argmax(device: torch.device) -> bool:
    """Whether `multinomial(probs, 1)` equals `argmax(probs / noise)` on a device; tested once per device."""
    one, other = (torch.Generator(device).manual_seed(20_241) for _ in range(2))
    logits = torch.randn((8, 3, 1_031), generator=torch.Generator().manual_seed(1), device="cpu")
    for probs in torch.softmax(logits, -1).to(device):
        expected = torch.multinomial(probs, 1, generator=one).squeeze(1)
        noise = torch.empty_like(probs).exponential_(generator=other)
        if not torch.equal(torch.argmax(probs / noise, -1), expected):
            return False
    return torch.equal(one.get_state(), other.get_state())


@contextmanager
def kept_generators(device: torch.device) -> Iterator[None]:
    """Take back what foreign code drew from the default generators of the CPU and of a device, if it drew."""
    generators = {default_generator(kind) for kind in (torch.device("cpu"), device)}
    states = [(generator, generator.get_state()) for generator in generators if generator is not None]
    try:
        yield
    finally:
        for generator, state in states:
            if not torch.equal(generator.get_state(), state):
                generator.set_state(state)


def row_seed(seed: int, row_id: Any) -> int:
    """Return the seed of a row's sampling, 0 to 2**63 - 1: a hash of the run's seed and the row's id as text.

    >>> row_seed(0, "a"), row_seed(0, "b"), row_seed(1, "a")
    (6121898922695542294, 4480852891094324950, 8190876836265851169)
    """
    digest = blake2b(f"{seed} {row_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
