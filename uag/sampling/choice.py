"""To be described."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from uag.proposal import Proposal
from uag.sampling.noise import Noise


class Choice(Protocol):
    """A rule of selection.

    Attributes:
        is_sequential: positions are looked at one by one, up to the first rejected candidate.
    """

    is_sequential: bool

    def choose(
        self,
        scores: torch.Tensor,
        steps: Sequence[int],
        rows: Sequence[int],
        candidates: Sequence[Proposal | None],
    ) -> torch.Tensor:
        """Select from scores [num, vocab_size].

        Args:
            scores: after the logits processors.
            steps: output step of each line.
            rows: place in the batch of each line.
            candidates: what was proposed for each line, None where nothing was.

        Returns:
            [num] target ids; -1 where the scores are not a law.
        """
        ...


class Greedy:
    """The token of the highest score."""

    is_sequential = False

    def choose(
        self,
        scores: torch.Tensor,
        steps: Sequence[int],  # noqa: ARG002 - the protocol's signature
        rows: Sequence[int],  # noqa: ARG002
        candidates: Sequence[Proposal | None],  # noqa: ARG002
    ) -> torch.Tensor:
        """Select the argmax of each line."""
        return torch.argmax(scores, dim=-1)


class Coupled:
    """Plain sampling's own choice: `argmax(probs / noise)`.

    Args:
        noise: the noise that plain sampling would draw.
    """

    is_sequential = False

    def __init__(self, noise: Noise) -> None:
        self.noise = noise

    def choose(
        self,
        scores: torch.Tensor,
        steps: Sequence[int],
        rows: Sequence[int],
        candidates: Sequence[Proposal | None],  # noqa: ARG002 - the output does not depend on the draft
    ) -> torch.Tensor:
        """Select with the noise of each line's step and row."""
        probs = torch.softmax(scores, dim=-1)
        self.noise.fit(min(steps), probs.shape[-1], probs.dtype)
        noise = self._gather(steps, rows)
        if noise.device != probs.device or noise.dtype != probs.dtype:
            probs = probs.to(noise.device, noise.dtype)
        ratios = probs.div_(noise)
        chosen = torch.argmax(ratios, dim=-1)
        # argmax stops at a NaN, where plain sampling raises
        is_law = ~ratios.gather(-1, chosen[:, None])[:, 0].isnan()
        return torch.where(is_law, chosen, -1).to(scores.device)

    def _gather(self, steps: Sequence[int], rows: Sequence[int]) -> torch.Tensor:
        whole = self.noise.at(steps[0])
        if len(set(steps)) == 1 and list(rows) == list(range(whole.shape[0])):
            return whole
        return torch.stack([self.noise.at(step)[row] for step, row in zip(steps, rows, strict=True)])
