"""Masks of four dimensions, which say of each token of a pass which slots of the cache it sees."""

import torch

TAKING_MASKS = ("sdpa", "eager")
"""Implementations of attention that take such a mask, and compute what the textbook says; others may be anybody's."""


def additive(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return what is added to the scores of attention: 0 where a slot is seen, the lowest number where it is not.

    Args:
        visible: [..., width, num_slots], bool.
        dtype: of the scores.
    """
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill_(~visible, torch.finfo(dtype).min)
