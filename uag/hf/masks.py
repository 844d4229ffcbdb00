"""Attention masks of four dimensions: the cache slots that each token of a pass sees."""

import torch

TAKING_MASKS = ("sdpa", "eager")
"""Implementations of attention that take such a mask and are transformers' own."""


def additive(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the summand of the attention scores: 0 where a slot is visible, the lowest number elsewhere.

    Args:
        visible: [..., width, num_slots], bool.
        dtype: of the scores.
    """
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill_(~visible, torch.finfo(dtype).min)
