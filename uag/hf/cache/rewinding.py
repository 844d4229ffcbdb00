"""The cache of one row of a draft with states, which can be cut to earlier lengths.

Keys and values are cropped. States cannot be cropped, so they are copied before a pass and put back by a rollback.
"""

from typing import Any

from transformers import cache_utils
from transformers.cache_utils import DynamicLayer

from uag.hf.cache import caches
from uag.hf.cache.growing import begin_buffering
from uag.hf.cache.states import States, has_state

_MAX_COPIES = 16
"""Maximum copies of states per row. Increase to run fewer tokens again after a rollback; decrease to save memory."""


class RewindableCache:
    """One row's cache, and copies of its states at some of its earlier lengths.

    Args:
        model: a model whose default cache has layers with states.

    Attributes:
        cache: the cache for the model.
        length: number of tokens in it.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._clear()

    def _clear(self) -> None:
        self.cache = _empty(self._model)
        self.length = 0
        self._copies: dict[int, States] = {}  # by length, ascending
        self._spare: list[States] = []  # copies whose tensors can be reused

    def nearest(self, length: int) -> int:
        """Return the largest length up to `length` that the cache can be cut to."""
        return max(known for known in (0, *self._copies, self.length) if known <= length)

    def cut(self, length: int) -> None:
        """Cut the cache to a length that `nearest` returned."""
        if length == self.length:
            return
        if not length:
            self._clear()
            return
        self._copies[length].put_back()
        caches.cut_slots(self.cache, 0, length)
        self.length = length
        for known in [known for known in self._copies if known >= length]:
            self._spare.append(self._copies.pop(known))

    def save(self) -> None:
        """Copy the states at the current length; before the first pass, there are none."""
        if not self.length:
            return
        if len(self._copies) == _MAX_COPIES:  # the older the copies, the wider apart
            for known in list(self._copies)[1::2]:
                self._spare.append(self._copies.pop(known))
        if self._spare:
            states = self._spare.pop()
            states.refresh()
        else:
            states = States([layer for layer in self.cache.layers if has_state(layer)])
        self._copies[self.length] = states


def _empty(model: Any) -> Any:
    """Return a model's default cache with attention layers that keep every position and grow in place."""
    cache = caches.default_cache(model)
    for index, layer in enumerate(cache.layers):
        if caches.is_sliding(layer) and has_state(layer):
            cache.layers[index] = cache_utils.LinearAttentionAndFullAttentionLayer(layer.number_of_states)
        elif caches.is_sliding(layer):
            cache.layers[index] = DynamicLayer()
    begin_buffering(cache)
    return cache
