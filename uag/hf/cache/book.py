"""The book of a draft's cache: which of its slots hold the tokens of which row."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from uag.hf.cache import caches
from uag.hf.cache.states import Copies, States, has_state

_MOST_GAPS = 16  # slots between a row's tokens that are left there, instead of moving keys and values


class Book:
    """Rows of different lengths in one cache.

    A pass appends its tokens behind all slots that are in use, aligned on the right. So what a shorter row repeats, and
    tokens that were cut, leave gaps between a row's tokens, which `mask` hides from it. States sum over all tokens,
    padding included, so a cache with states has one row, and a cut returns to the nearest length at which they were
    saved.

    Attributes:
        slots: for each row, the slots of its tokens, ascending.
        num_slots: number of slots in use.
        is_spoiled: whether the last pass had NaN among its logits.
    """

    def __init__(self, new_cache: Callable[[], Any], num_rows: int = 1, *, has_states: bool = False) -> None:
        self.cache = new_cache()
        self.slots: list[list[int]] = [[] for _ in range(num_rows)]
        self.num_slots = 0
        self.is_spoiled = False
        self._new_cache = new_cache
        self._copies = Copies[States]() if has_states else None

    def cut(self, row: int, length: int) -> int:
        """Keep at most the first `length` tokens of a row, and return how many are kept."""
        slots = self.slots[row]
        length = min(length, len(slots))
        if self._copies is not None and length < len(slots):
            length = self._copies.nearest(length)
            if length:
                self._copies.by_length[length].put_back()
                self._copies.drop(length)
            else:
                self.cache, self._copies = self._new_cache(), Copies()
        del slots[length:]
        return length

    def tidy(self) -> None:
        """Free the slots at the end that no row uses, and close gaps if there are many."""
        used = max((slots[-1] + 1 for slots in self.slots if slots), default=0)
        if used != self.num_slots:
            caches.cut_slots(self.cache, 0, used)
            self.num_slots = used
        longest = max(map(len, self.slots), default=0)
        if used - longest > (_MOST_GAPS if len(self.slots) > 1 else 0):  # passes over one row have no mask
            index = torch.zeros((len(self.slots), longest), dtype=torch.long)
            for row, slots in enumerate(self.slots):
                index[row, longest - len(slots) :] = torch.tensor(slots, dtype=torch.long)
                self.slots[row] = list(range(longest - len(slots), longest))
            caches.take_slots(caches.self_attention_layers(self.cache), index)
            self.num_slots = longest

    def append(self, counts: Mapping[int, int]) -> None:
        """Record the pass that follows: the number of new tokens by row, for some of the rows."""
        self.num_slots += max(counts.values())
        for row, count in counts.items():
            self.slots[row].extend(range(self.num_slots - count, self.num_slots))

    def save(self) -> None:
        """Copy the states, so that `cut` can return to this length; do nothing without states or tokens."""
        length = len(self.slots[0])
        if self._copies is not None and length:
            self._copies.thin_out()
            self._copies.by_length[length] = States([layer for layer in self.cache.layers if has_state(layer)])

    def mask(self) -> npt.NDArray[np.int64]:
        """Return 1 for each slot that holds a token of a row, else 0: [num_rows, num_slots]."""
        mask = np.zeros((len(self.slots), self.num_slots), dtype=np.int64)
        for row, slots in enumerate(self.slots):
            # NumPy indexes with a list element by element.
            is_range = slots and slots[-1] - slots[0] == len(slots) - 1
            mask[row, slice(slots[0], slots[-1] + 1) if is_range else slots] = 1
        return mask

    def wipe(self) -> None:
        """Zero the slots that hold no token: the mask gives them weight 0, but 0 times NaN is NaN."""
        is_unused = torch.from_numpy(self.mask() == 0)
        for layer in caches.self_attention_layers(self.cache):
            num_more = layer.keys.shape[2] - is_unused.shape[1]
            places = torch.nn.functional.pad(is_unused, (0, num_more), value=True)[:, None, :, None]
            for tensor in (layer.keys, layer.values):
                tensor.masked_fill_(places.to(tensor.device), 0)

    @torch.inference_mode()
    def take(self, rows: Sequence[int | None]) -> None:
        """Keep these rows, in this order; None is a new, empty row."""
        self.slots = [[] if row is None else self.slots[row] for row in rows]
        self.cache.batch_select_indices(torch.tensor([row or 0 for row in rows], device="cpu"))

    @torch.inference_mode()
    def put(self, row: int, other: "Book") -> None:
        """Replace a row's tokens by those of a book of one row, whose layers keep all positions."""
        self.cut(row, 0)
        self.tidy()
        for number, layer in enumerate(caches.self_attention_layers(other.cache)):
            keys, values = (one.new_zeros((len(self.slots), *one.shape[1:])) for one in (layer.keys, layer.values))
            keys[row], values[row] = layer.keys[0], layer.values[0]
            self.cache.update(keys, values, number)
        self.append({row: other.num_slots})
