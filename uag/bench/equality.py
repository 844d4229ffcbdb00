"""Compare an arm's output with another arm's, id for id."""

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad


@dataclass(frozen=True)
class Difference:
    """The first token in which an arm's output and plain's differ; an id is None where that output had ended."""

    row: int
    step: int
    plain_id: int | None
    arm_id: int | None

    def describe(self, tokenizer: Any, reference: str = "plain decoding") -> str:
        """Return one line with where the outputs differ; `reference` names what `plain_id` comes from."""
        plain_text, arm_text = (
            "the end" if token_id is None else repr(tokenizer.decode([token_id]))
            for token_id in (self.plain_id, self.arm_id)
        )
        return f"row {self.row}, output token {self.step}: {arm_text} where {reference} has {plain_text}"


def first_difference(plain_ids: torch.Tensor, arm_ids: torch.Tensor) -> Difference | None:
    """Find the first step in which two outputs [batch, num_steps] differ; a shorter one differs where it ends.

    >>> first_difference(torch.tensor([[1, 2, 3]]), torch.tensor([[1, 2]]))
    Difference(row=0, step=2, plain_id=3, arm_id=None)
    """
    num_steps = max(plain_ids.shape[1], arm_ids.shape[1])
    plain, arm = (pad(ids, (0, num_steps - ids.shape[1]), value=-1) for ids in (plain_ids, arm_ids))
    differs = plain != arm
    if not differs.any():
        return None
    step, row = differs.T.nonzero()[0].tolist()
    plain_id, arm_id = (int(ids[row, step]) if step < ids.shape[1] else None for ids in (plain_ids, arm_ids))
    return Difference(row, step, plain_id, arm_id)


def is_half(model: Any) -> bool:
    """Whether a model computes in bfloat16 or float16."""
    return model.dtype in (torch.bfloat16, torch.float16)
