"""Masks of passes over a tree.

A pass over one continuation needs no mask. Where several continuations share a pass, each token may see its own
ancestors only (tree attention; Miao et al., arXiv:2305.09781), and a mask of four dimensions expresses that. Whether a
model follows such masks is tried in `uag.hf.trials.drafts`.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from uag.hf import masks
from uag.projection import Feed


def seen(
    requests: Sequence[tuple[int, Feed]], columns: Sequence[Sequence[int]], start: int, width: int, num_slots: int
) -> npt.NDArray[np.bool_]:
    """Return which slots each token of a pass sees, [num_rows, 1, width, num_slots]; rows end in the last column.

    Args:
        requests: (row, request) pairs.
        columns: by row, the slots of its path, what the request drops left out.
        start: slot of the pass's first column.
        width: columns of the pass.
        num_slots: slots of the cache behind the pass.
    """
    found = np.zeros((len(columns), 1, width, num_slots), dtype=np.bool_)
    for row, slots in enumerate(columns):
        found[row, 0, :, _run(slots)] = True
    for row, request in requests:
        tokens, size = request.nodes + request.side, len(request.nodes)
        first = width - len(tokens)
        own = found[row, 0, first:]
        own[:size, start + first : start + first + size] = np.tri(size)
        place = {id(node): index for index, node in enumerate(tokens)}
        for index, node in enumerate(request.side, start=size):
            at = None if node.parent is None else place.get(id(node.parent))
            if at is None:
                own[index] = False
                own[index, _run(columns[row][: node.depth])] = True
            else:
                own[index] = own[at]
            own[index, start + first + index] = True
    return found


def _run(slots: Sequence[int]) -> slice | Sequence[int]:
    """Return slots without holes as a slice: a list is looked through one by one."""
    return slice(slots[0], slots[-1] + 1) if slots and slots[-1] - slots[0] == len(slots) - 1 else slots


def additive(mask: npt.NDArray[np.bool_], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a mask as what is added to the scores of attention."""
    return masks.additive(torch.from_numpy(mask).to(device), dtype)
