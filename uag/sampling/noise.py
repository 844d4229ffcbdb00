"""The sampling noise that the target and the draft share.

`torch.multinomial(probs, 1)` is `argmax(probs / noise)` with `noise = empty_like(probs).exponential_()`, so plain
sampling is a deterministic function of its noise (the Gumbel-max trick). The noise of each output step is drawn once,
in step order, from the generator that plain decoding would use. The target selects with it, the draft proposes with it,
and at the end the generator is set to its state after plain decoding. Daliri et al. (arXiv:2408.07978) prove that such
a coupling accepts at least (1 - TV) / (1 + TV), the best possible if the output does not depend on the draft.
"""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

_MAX_KEPT_BYTES = 1 << 28
"""Maximum size of the noise kept for rows that lag behind; older draws are repeated from their generator state when
needed. Increase to repeat fewer draws; decrease to save memory."""

_MIN_KEPT_STEPS = 8
"""Minimum number of steps to keep. Increase for longer blocks without repeated draws; decrease to save memory."""


class NoiseTape:
    """The draws that plain sampling would make, kept until every row has used them.

    Args:
        batch_size: number of rows; plain sampling draws for all of them at every step, finished or not.
        vocab_size: size of the target's head.
        device: device of the target's scores.
        generator: the generator to draw from; None for the device's default generator.
        max_kept_bytes: maximum size of the kept noise; older draws are repeated for rows that lag far behind.
    """

    def __init__(
        self,
        batch_size: int,
        vocab_size: int,
        device: torch.device,
        generator: torch.Generator | None = None,
        max_kept_bytes: int = _MAX_KEPT_BYTES,
    ) -> None:
        self.batch_size = batch_size
        self.vocab_size = vocab_size
        self.dtype = torch.float32
        self.device = device
        self.generator = generator if generator is not None else default_generator(device)
        self.max_kept_bytes = max_kept_bytes
        self._drawn: OrderedDict[int, torch.Tensor] = OrderedDict()
        self._states: dict[int, torch.Tensor] = {0: self.generator.get_state()}
        self._next = 0

    def at(self, step: int) -> torch.Tensor:
        """Return the noise of an output step, [batch_size, vocab_size], after drawing all steps before it in order."""
        if step >= self._next:
            # The caller's processors may have used the generator since; each draw starts where the previous one ended.
            self.generator.set_state(self._states[self._next])
            while self._next <= step:
                self._draw(self._next)
                self._next += 1
                self._states[self._next] = self.generator.get_state()
        elif step not in self._drawn:
            self.generator.set_state(self._states[step])
            self._draw(step)
        self._drawn.move_to_end(step)
        return self._drawn[step]

    def _draw(self, step: int) -> None:
        noise = torch.empty((self.batch_size, self.vocab_size), dtype=self.dtype, device=self.device)
        self._drawn[step] = noise.exponential_(generator=self.generator)
        num_kept = max(_MIN_KEPT_STEPS, self.max_kept_bytes // max(noise.nbytes, 1))
        while len(self._drawn) > num_kept:
            self._drawn.popitem(last=False)

    def fit(self, step: int, vocab_size: int, dtype: torch.dtype) -> None:
        """Draw for probabilities of this width and dtype from `step` on."""
        if (vocab_size, dtype) != (self.vocab_size, self.dtype):
            self.vocab_size, self.dtype = vocab_size, dtype
            self._void(step)

    def release(self, before: int) -> None:
        """Free the steps before `before`, except for the state that the next draw needs."""
        before = min(before, self._next)
        for kept in (self._drawn, self._states):
            for step in [step for step in kept if step < before]:
                del kept[step]

    @contextmanager
    def exposed(self, step: int) -> Iterator[None]:
        """Run the caller's code with the generator state that plain decoding has before `step`, and keep its draws."""
        self.generator.set_state(self._states[step])
        try:
            yield
        finally:
            state = self.generator.get_state()
            if not torch.equal(state, self._states[step]):  # noise that was drawn ahead is drawn again when needed
                self._void(step)
                self._states[step] = state

    def _void(self, step: int) -> None:
        for drawn in [drawn for drawn in self._drawn if drawn >= step]:
            del self._drawn[drawn]
        for later in [later for later in self._states if later > step]:
            del self._states[later]
        self._next = min(self._next, step)

    def finish(self, num_steps: int) -> None:
        """Set the generator to its state after plain decoding's step `num_steps` and free all noise."""
        if num_steps > self._next:
            self.at(num_steps - 1)
        self.generator.set_state(self._states[num_steps])
        self._drawn.clear()


def default_generator(device: torch.device) -> torch.Generator:
    """Return the generator that torch's sampling functions use on a device."""
    if device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]
        index = device.index if device.index is not None else torch.cuda.current_device()
        generator: torch.Generator = torch.cuda.default_generators[index]
        return generator
    if device.type == "mps":
        return torch.mps._get_default_mps_generator()
    return torch.default_generator


@contextmanager
def as_default(generator: torch.Generator | None, device: torch.device) -> Iterator[None]:
    """Use the state of `generator` in a device's default generator, and restore it at the end; None does nothing."""
    if generator is None:
        yield
        return
    default = default_generator(device)
    saved = default.get_state()
    default.set_state(generator.get_state())
    try:
        yield
    finally:
        generator.set_state(default.get_state())
        default.set_state(saved)


@contextmanager
def kept_generators(device: torch.device) -> Iterator[None]:
    """Restore the default generators of the CPU and of a device when the context ends."""
    generators = {default_generator(kind) for kind in (torch.device("cpu"), device)}
    states = [(generator, generator.get_state()) for generator in generators]
    try:
        yield
    finally:
        for generator, state in states:
            generator.set_state(state)


@cache
def multinomial_is_argmax(device: torch.device) -> bool:
    """Whether `multinomial(probs, 1)` equals `argmax(probs / noise)` on a device; tested once per device."""
    generator = default_generator(device)
    saved = generator.get_state()
    try:
        generator.manual_seed(20_241)
        logits = torch.randn((8, 3, 1_031), device=device, generator=generator)
        state = generator.get_state()
        direct = [torch.multinomial(torch.softmax(part, -1), 1).squeeze(1) for part in logits]
        after = generator.get_state()
        generator.set_state(state)
        for part, expected in zip(logits, direct, strict=True):
            probs = torch.softmax(part, -1)
            noise = torch.empty_like(probs).exponential_(generator=generator)
            if not torch.equal(torch.argmax(probs / noise, -1), expected):
                return False
        return torch.equal(generator.get_state(), after)
    finally:
        generator.set_state(saved)
