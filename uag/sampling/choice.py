"""The rules that select a token from the target's scores."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import numpy.typing as npt
import torch

from uag.hf.devices import default_generator
from uag.proposal import Proposal
from uag.sampling.noise import NoiseTape
from uag.sampling.rejection import verify

Places = Sequence[tuple[int, int]]  # the output step and the batch row of each line of scores

Candidates = Sequence[Proposal | None]


class Choice:
    """Greedy decoding: selects the token with the highest score. The rules for sampling are subclasses.

    Attributes:
        mode: name of the rule; acceptance statistics are kept per mode.
        is_sequential: whether positions are selected one by one, up to the first rejected candidate.
    """

    mode = "greedy"
    is_sequential = False

    def choose(self, scores: torch.Tensor, places: Places, candidates: Candidates) -> torch.Tensor:  # noqa: ARG002
        """Select from processed scores [num, vocab_size], each with its output step, its row and its candidate or None.

        Returns [num] target ids; -1 where the scores are not a valid distribution.
        """
        return argmax(scores)

    def noise_at(self, step: int, row: int) -> npt.NDArray[np.float32] | None:  # noqa: ARG002
        """Return the noise [vocab_size] that the draft divides its masses by, so that both tend to select the same."""
        return None

    def uniform(self) -> float | None:
        """Return a number in [0, 1) with which the draft samples its proposal; None if it does not sample."""
        return None

    def exposed(self, step: int) -> AbstractContextManager[None]:  # noqa: ARG002
        """Run the caller's code with the generator state that plain decoding has before `step`, and keep its draws."""
        return nullcontext()

    def release(self, before: int) -> None:
        """Free the noise of steps before `before`, which every row has passed."""

    def finish(self, num_steps: int) -> None:
        """Set the generator to its state after `num_steps` steps of plain decoding."""


class Coupled(NoiseTape, Choice):
    """Plain sampling: selects `argmax(probs / noise)` with the noise that plain sampling would draw."""

    mode = "sample"

    def choose(self, scores: torch.Tensor, places: Places, candidates: Candidates) -> torch.Tensor:  # noqa: ARG002
        probs = torch.softmax(scores, dim=-1)
        self.fit(min(places)[0], probs.shape[-1], probs.dtype)
        ratios = probs.div_(torch.stack([self.at(step)[row] for step, row in places]))
        chosen = argmax(ratios)
        # argmax returns the index of a NaN, for which plain sampling raises
        is_valid = ~ratios.gather(-1, chosen[:, None])[:, 0].isnan()
        return torch.where(is_valid, chosen, -1)

    def noise_at(self, step: int, row: int) -> npt.NDArray[np.float32]:
        noise: npt.NDArray[np.float32] = self.at(step)[row].float().cpu().numpy()
        return noise


def argmax(scores: torch.Tensor) -> torch.Tensor:
    """Return the index [num] of the first maximum or NaN of each line; PyTorch takes 12 times as long on a CPU."""
    if scores.device.type == "cpu" and scores.dtype == torch.float32:
        return torch.from_numpy(scores.detach().numpy().argmax(axis=-1))
    return torch.argmax(scores, dim=-1)


class Rejecting(Choice):
    """Rejection sampling, with the distribution that a candidate was drawn from (`uag.sampling.rejection`)."""

    mode = "reject"
    is_sequential = True

    def __init__(self, device: torch.device, generator: torch.Generator | None = None) -> None:
        seed = int(torch.randint(1 << 62, (1,), device=device, generator=generator).item())
        self._random = np.random.Generator(np.random.Philox(seed))

    def uniform(self) -> float:
        return float(self._random.random())

    @np.errstate(all="ignore")  # probabilities may underflow, also where the caller makes that an error
    def choose(self, scores: torch.Tensor, places: Places, candidates: Candidates) -> torch.Tensor:  # noqa: ARG002
        chosen = []
        # In float64 on the CPU, because MPS has no float64.
        for line, candidate in zip(torch.softmax(scores.cpu().double(), dim=-1).numpy(), candidates, strict=True):
            if np.isnan(line[0]):
                chosen.append(-1)
                continue
            draft_probs = None if candidate is None else candidate.draft_probs
            target_id = 0 if candidate is None else candidate.target_id
            chosen.append(verify(line, draft_probs, target_id, (self.uniform(), self.uniform())))
        return torch.tensor(chosen, device=scores.device)


def make_choice(
    sampling: str | None, shape: tuple[int, int], device: torch.device, generator: torch.Generator | None
) -> Choice:
    """Return the selection rule of a call of `shape` rows and ids; without `sampling`, greedy decoding."""
    if sampling == "rejection":
        return Rejecting(device, generator)
    generator = default_generator(device) if generator is None else generator
    return Choice() if sampling is None or generator is None else Coupled(*shape, device, generator)
