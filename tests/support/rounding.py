"""Whether a differing id is the target's own rounding: counted and printed, never waved through.

The same position computed alone and inside a block can differ in the last bits of float32. A difference is the target's
own only if the target itself reproduces it: with one token per pass it selects the one id, in some block form the
other, and the two lie within 1e-4 of each other.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import DynamicCache

MARGIN = 1e-4
_LONGEST_BLOCK = 34


@dataclass
class Differences:
    """What was compared, and the differences that the target reproduces."""

    num_ids: int = 0
    found: list[str] = field(default_factory=list)

    def check(self, target: Any, prompt_ids: Sequence[int], expected: Sequence[int], outputs: Sequence[int]) -> None:
        """Compare one row's outputs with plain decoding's, id for id."""
        self.num_ids += len(expected)
        if list(expected) == list(outputs):
            return
        assert len(expected) == len(outputs) or expected[: len(outputs)] != outputs[: len(expected)], (
            f"plain decoding writes {len(expected)} ids, and {len(outputs)} were written"
        )
        place = next(i for i, (a, b) in enumerate(zip(expected, outputs, strict=False)) if a != b)
        self.found.append(
            explain(target, [*prompt_ids, *expected[:place]], len(prompt_ids), expected[place], outputs[place:])
        )

    def report(self, title: str) -> None:
        """Print what was found."""
        sys.stdout.write(
            f"{title}: {self.num_ids} ids compared, {len(self.found)} rows part by the target's own rounding\n"
        )
        for line in self.found:
            sys.stdout.write(f"  {line}\n")


@torch.no_grad()
def explain(target: Any, ids: Sequence[int], prompt_length: int, expected: int, others: Sequence[int]) -> str:
    """Show that the id behind `ids` is `expected` in one-token form and `others[0]` in block form, by a hair.

    Raises:
        AssertionError: the target does not reproduce both.
    """
    single = _last_logits(target, ids, [prompt_length, *[1] * (len(ids) - prompt_length)])
    margin = float((single[expected] - single[others[0]]).abs())
    where = f"at id {len(ids)}: {expected} in one-token form, {others[0]} written, margin {margin:.2e}"
    assert int(single.argmax()) == expected, f"{where}; but one-token form gives {int(single.argmax())}"
    assert margin < MARGIN, f"{where}; too wide for rounding"
    for behind in range(min(_LONGEST_BLOCK, len(others))):
        for before in range(1, min(_LONGEST_BLOCK, len(ids) - prompt_length) + 1):
            head = [prompt_length, *[1] * (len(ids) - prompt_length - before)]
            block = _last_logits(target, [*ids, *others[:behind]], [*head, before + behind], back=behind)
            if int(block.argmax()) == others[0]:
                return f"{where}; the same in a block of {before + behind}"
    raise AssertionError(f"{where}; but no block form gives it")


def _last_logits(target: Any, ids: Sequence[int], sizes: Sequence[int], back: int = 0) -> torch.Tensor:
    """Run ids in passes of the given sizes; returns the logits `back` places before the last, [vocab_size]."""
    cache, start = DynamicCache(config=target.config), 0
    logits = torch.empty(0)
    for size in sizes:
        part = torch.tensor([list(ids[start : start + size])])
        positions = torch.arange(start, start + part.shape[1])[None]
        logits = target(input_ids=part, position_ids=positions, past_key_values=cache, use_cache=True).logits
        start += size
    return logits[0, -1 - back].float()
