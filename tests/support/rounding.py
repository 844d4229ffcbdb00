"""Decides with `uag.bench.equality` whether differing ids are due to the target's own rounding, and counts them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from uag.bench.equality import MARGIN, first_difference, replay


@dataclass
class Differences:
    """Counts of comparisons, and the differences that the target reproduces."""

    num_ids: int = 0
    found: list[str] = field(default_factory=list)

    def check(
        self,
        target: Any,
        prompt_ids: Sequence[int],
        expected: Sequence[int],
        outputs: Sequence[int],
        noise_at: Callable[[int], torch.Tensor] | None = None,
    ) -> None:
        """Compare one row's outputs with plain decoding's, id for id.

        With sampling, `noise_at` returns the noise that is added to the logits of an output step before the argmax.

        Raises:
            AssertionError: they differ, and the target does not reproduce both.
        """
        self.num_ids += len(expected)
        prompt, plain_ids = torch.tensor([list(prompt_ids)]), torch.tensor([list(expected)])
        difference = first_difference(plain_ids, torch.tensor([list(outputs)]))
        if difference is None:
            return
        assert None not in (difference.plain_id, difference.arm_id), (
            f"plain decoding writes {len(expected)} ids, and {len(outputs)} were written"
        )
        inputs = {"input_ids": prompt, "attention_mask": torch.ones_like(prompt)}
        noise = None if noise_at is None else noise_at(difference.step)
        difference = replay(target, inputs, plain_ids, difference, noise)
        margin = difference.margin or 0.0
        where = f"output id {difference.step} is {difference.arm_id}, plain decoding's {difference.plain_id}"
        assert abs(margin) < MARGIN, f"{where}; {margin:.2e} apart, too wide for rounding"
        assert margin >= 0.0, f"{where}; but one-token form gives {difference.arm_id} the higher score"
        assert difference.is_rounding, f"{where}; but no block form gives it"
        self.found.append(f"{where}; a block form gives it, by {margin:.2e}")

    def report(self, title: str) -> None:
        """Print the counts and differences."""
        sys.stdout.write(
            f"{title}: {self.num_ids} ids compared, {len(self.found)} rows part by the target's own rounding\n"
        )
        for line in self.found:
            sys.stdout.write(f"  {line}\n")
