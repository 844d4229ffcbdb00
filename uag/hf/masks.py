"""4D attention masks: the cache slots that each token of a pass attends to."""

import torch

TAKING_MASKS = ("sdpa", "eager")
"""transformers' own attention implementations that accept a 4D mask."""


def additive(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return an additive mask: 0 where a slot is visible, the dtype's minimum elsewhere.

    Args:
        visible: [..., width, num_slots], bool.
        dtype: dtype of the attention scores.
    """
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill_(~visible, torch.finfo(dtype).min)
