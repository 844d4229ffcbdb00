"""Cache layers that keep a state instead of positions: convolutions over the last few tokens, linear attention.

The inputs of a convolution can be recorded and cropped like keys and values. A recurrent state sums over all tokens and
cannot be cropped, so it is restored from an earlier copy. Copies are small (they have no time axis), and the accepted
tokens after a copy are recomputed together with the next candidates.
"""

from typing import Any

from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)

KEPT_BY_STATE: tuple[type, ...] = (
    LinearAttentionLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
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
        """Restore the states by exchanging tensors with the layers; `refresh` must precede another call."""
        for current, copied in self._copies:
            for index in copied:
                current[index], copied[index] = copied[index], current[index]

    def refresh(self) -> None:
        """Copy the layers' current states into the existing tensors."""
        for current, copied in self._copies:
            for index, state in copied.items():
                if state is not None:
                    state.copy_(current[index])
