"""Passes over a tree: who sees whom, and whether a model can be told.

A pass over one continuation needs no mask. Where several continuations share a pass, each token may see its own
ancestors only (tree attention; Miao et al., arXiv:2305.09781), and a mask of four dimensions says so.
"""

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from uag.hf import caches, masks, models, weights
from uag.hf.evaluation import in_evaluation
from uag.hf.undisturbed import kept_random_states
from uag.projection import Feed

_MOST_OFF = 0.05
"""Difference between a token's logits in a tree and alone, as a share of what another context makes of them: more would
let masks pass that are not followed, less would refuse half precision."""

_known: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


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


def takes_trees(model: Any, device: torch.device) -> bool:
    """Whether a model follows such masks, by trying: six small passes at the first asking.

    A token behind another one is read alone, and beside a sibling of that one: both must give the same logits.
    """
    itself = next(iter(model.modules()))  # a draft may come as a weak proxy, which cannot be a key
    if itself not in _known:
        _known[itself] = models.attention_of(model) in masks.TAKING_MASKS and _follows(model, device)
    return _known[itself]


def _follows(model: Any, device: torch.device) -> bool:
    first, second, third = _different_ids(model)
    tree = np.array([[1, 1, 0], [1, 0, 1]], dtype=np.bool_)[None, None]

    def last(ids: Sequence[int], positions: Sequence[int], mask: torch.Tensor | None) -> torch.Tensor:
        cache = caches.dynamic_cache()
        for part in (slice(0, 1), slice(1, None)):
            output = model(
                input_ids=torch.tensor([ids[part]], device=device),
                position_ids=torch.tensor([positions[part]], device=device),
                past_key_values=cache,
                use_cache=True,
                return_dict=True,
                **({} if mask is None or part.stop == 1 else {"attention_mask": mask}),
            )
        logits: torch.Tensor = output.logits[0, -1].float()
        return logits

    with torch.no_grad(), in_evaluation(model), kept_random_states(device):
        try:
            alone = last([first, third], [0, 1], None)
            other = last([first, second, third], [0, 1, 2], None)
            beside = last([first, second, third], [0, 1, 1], additive(tree, model.dtype, device))
        except (AssertionError, AttributeError, IndexError, RuntimeError, TypeError, ValueError):
            return False  # it takes masks of two dimensions only
    return bool((beside - alone).abs().max() <= _MOST_OFF * (other - alone).abs().max())


def _different_ids(model: Any) -> tuple[int, int, int]:
    """Return three ids that are unlikely to be special ones."""
    size = int(weights.weight_of(model.get_input_embeddings()).shape[0])
    return size // 2, size // 3, size // 4
