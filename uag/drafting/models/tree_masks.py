"""Masks of passes over a tree.

A pass over one continuation needs no mask. If several continuations share a pass, each token must attend only to its
own ancestors (tree attention; Miao et al., arXiv:2305.09781), which a 4D mask expresses. `uag.hf.trials.drafts` tests
whether a model honors such masks.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from uag.projection import Feed


def visible_slots(
    requests: Sequence[tuple[int, Feed]], columns: Sequence[Sequence[int]], start: int, width: int, num_slots: int
) -> npt.NDArray[np.bool_]:
    """Return which slots each token of a pass sees, [num_rows, 1, width, num_slots]; rows end in the last column.

    Args:
        requests: (row, request) pairs.
        columns: for each row, the slots of its path, without those that the request drops.
        start: slot of the pass's first column.
        width: number of columns of the pass.
        num_slots: number of cache slots after the pass.
    """
    visible = np.zeros((len(columns), 1, width, num_slots), dtype=np.bool_)
    for row, slots in enumerate(columns):
        visible[row, 0, :, _as_slice(slots)] = True
    for row, request in requests:
        tokens, size = request.nodes + request.side, len(request.nodes)
        first = width - len(tokens)
        of_tokens = visible[row, 0, first:]
        of_tokens[:size, start + first : start + first + size] = np.tri(size)
        index_of = {id(node): index for index, node in enumerate(tokens)}
        for index, node in enumerate(request.side, start=size):
            parent = index_of.get(id(node.parent))
            if parent is None:
                of_tokens[index] = False
                of_tokens[index, _as_slice(columns[row][: node.depth])] = True
            else:
                of_tokens[index] = of_tokens[parent]
            of_tokens[index, start + first + index] = True
    return visible


def _as_slice(slots: Sequence[int]) -> slice | Sequence[int]:
    """Return consecutive slots as a slice, because NumPy indexes with a list element by element."""
    return slice(slots[0], slots[-1] + 1) if slots and slots[-1] - slots[0] == len(slots) - 1 else slots
