"""Rewinds caches with states to earlier lengths.

Keys and values are cropped. States cannot be cropped, so they are copied before a pass and put back by a rollback.
"""

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from transformers import cache_utils
from transformers.cache_utils import DynamicLayer

from uag.hf.cache import caches
from uag.hf.cache.growing import BufferedLayer
from uag.hf.cache.states import States, has_state

MAX_COPIES = 16
"""Maximum copies of states per row. Increase to run fewer tokens again after a rollback; decrease to save memory."""

Copy = TypeVar("Copy")


class Copies(Generic[Copy]):
    """At most `max_copies` (3 or more) copies of a row's states. The older the copies, the wider apart.

    Attributes:
        by_length: copies in use by number of tokens, ascending.
        spare: unused copies, whose memory can be overwritten.
    """

    def __init__(self, spare: Iterable[Copy] = (), max_copies: int = MAX_COPIES) -> None:
        self.by_length: dict[int, Copy] = {}
        self.spare = list(spare)
        self._max_copies = max_copies

    def nearest(self, length: int) -> int:
        """Return the largest copied length up to `length`; 0 if there is none, since an empty cache has no states."""
        return max(known for known in (0, *self.by_length) if known <= length)

    def drop(self, first: int) -> list[Copy]:
        """Drop the copies of `first` tokens and more, and return them."""
        return self._drop([known for known in self.by_length if known >= first])

    def thin_out(self) -> list[Copy]:
        """Drop every second copy of the older half if there is no space for another one, and return them."""
        is_full = len(self.by_length) == self._max_copies
        return self._drop(list(self.by_length)[1 : -(self._max_copies // 2) : 2] if is_full else [])

    def _drop(self, lengths: Iterable[int]) -> list[Copy]:
        dropped = [self.by_length.pop(length) for length in lengths]
        self.spare += dropped
        return dropped


class RewindableCache(Copies[States]):
    """One row's cache for a model with states, and copies of the states at some of its earlier lengths."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.cache = _empty(model)

    def cut(self, length: int) -> None:
        """Cut the cache to its present length or to one that `nearest` returned, but not to 0."""
        if length in self.by_length:
            self.by_length[length].put_back()
            self.drop(length)
            caches.cut_slots(self.cache, 0, length)

    def save(self, length: int) -> None:
        """Copy the states at the present length; at 0, there are none."""
        if not length:
            return
        self.thin_out()
        if self.spare:
            states = self.spare.pop()
            states.refresh()
        else:
            states = States([layer for layer in self.cache.layers if has_state(layer)])
        self.by_length[length] = states


def _empty(model: Any) -> Any:
    """Return a model's default cache with attention layers that keep every position and grow in place."""
    cache = caches.default_cache(model)
    for index, layer in enumerate(cache.layers):
        if caches.is_sliding(layer) and has_state(layer):
            cache.layers[index] = cache_utils.LinearAttentionAndFullAttentionLayer(layer.number_of_states)
        elif caches.is_sliding(layer) or type(layer) is DynamicLayer:
            cache.layers[index] = BufferedLayer()
    return cache
