"""Cache layers that keep a state instead of positions: convolutions over the last few tokens, linear attention.

The inputs of a convolution can be recorded and cropped like keys. A recurrent state is restored from an earlier copy,
and the accepted tokens after it are recomputed together with the next candidates.
"""

from typing import Any, Generic, TypeVar

from transformers import cache_utils
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

KEPT_BY_STATE: tuple[type, ...] = (
    cache_utils.LinearAttentionLayer,
    cache_utils.LinearAttentionAndFullAttentionLayer,
    cache_utils.LinearAttentionAndSlidingWindowAttentionLayer,
)
"""Layer classes with states, with or without keys and values."""


def has_state(layer: Any) -> bool:
    """Whether a layer keeps a state of any kind."""
    return isinstance(layer, KEPT_BY_STATE)


def is_recurrent(layer: Any) -> bool:
    """Whether a layer keeps a state that cannot be cropped; known after the first pass."""
    return has_state(layer) and any(layer.is_recurrent_states_initialized.values())


def cut_keys(layer: Any, num_tokens: int) -> None:
    """Drop the last positions of a recurrent layer's keys and values, but not of its states."""
    if isinstance(layer, DynamicSlidingWindowLayer):
        DynamicSlidingWindowLayer.crop(layer, -num_tokens)
    elif isinstance(layer, DynamicLayer):
        DynamicLayer.crop(layer, -num_tokens)
    if layer.record_past:  # the flag also controls a window of keys
        for index, size in layer.conv_kernel_size.items():
            if size is not None:
                layer.conv_states[index] = layer.conv_states[index][..., -size:]


class States:
    """A copy of the states of some layers."""

    def __init__(self, layers: list[Any]) -> None:
        states = [of_layer for layer in layers for of_layer in (layer.conv_states, layer.recurrent_states)]
        self._copies = [
            (current, {index: None if state is None else state.clone() for index, state in current.items()})
            for current in states
        ]

    def put_back(self) -> None:
        """Restore the states, once: the layers take over the copied tensors."""
        for current, copied in self._copies:
            current.update(copied)


MAX_COPIES = 16  # copies of states per row, 3 or more; with more, fewer tokens run again after a rollback

Copy = TypeVar("Copy")


class Copies(Generic[Copy]):
    """At most `MAX_COPIES` copies of a row's states, by length. The older the copies, the wider apart."""

    def __init__(self) -> None:
        self.by_length: dict[int, Copy] = {}

    def nearest(self, length: int) -> int:
        """Return the largest copied length up to `length`; 0 if there is none, since an empty cache has no states."""
        return max(known for known in (0, *self.by_length) if known <= length)

    def drop(self, first: int) -> None:
        """Drop the copies of `first` tokens and more."""
        self.by_length = {known: copy for known, copy in self.by_length.items() if known < first}

    def thin_out(self) -> None:
        """Drop every second copy of the older half if there is no space for another one."""
        if len(self.by_length) == MAX_COPIES:
            for known in list(self.by_length)[1 : -(MAX_COPIES // 2) : 2]:
                del self.by_length[known]
