"""Layers that keep a state instead of positions: convolutions over the last few tokens, linear attention.

A convolution's inputs can be recorded and cut like keys and values. A recurrent state holds all tokens in one sum, from
which none can be taken out: nothing but an earlier copy brings it back. Those copies are small (no axis of time), and
the tokens behind one are read again together with the next candidates.
"""

from typing import Any, Self

import torch
from transformers import cache_utils
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

KEPT_BY_STATE: tuple[type, ...] = tuple(
    getattr(cache_utils, name)
    for name in (
        "LinearAttentionLayer",
        "LinearAttentionAndFullAttentionLayer",
        "LinearAttentionAndSlidingWindowAttentionLayer",
    )
    if hasattr(cache_utils, name)
)
"""Layers with states, alone or beside keys and values."""


def has_state(layer: Any) -> bool:
    """Whether a layer keeps a state of any kind."""
    return isinstance(layer, KEPT_BY_STATE)


def is_recurrent(layer: Any) -> bool:
    """Whether a layer keeps a state that no cutting brings back; only known once a pass has filled it."""
    return has_state(layer) and any(layer.is_recurrent_states_initialized.values())


def cut_keys(layer: Any, num_tokens: int) -> None:
    """Drop the last positions of what a recurrent layer keeps of keys and values; its states stay."""
    if isinstance(layer, DynamicSlidingWindowLayer):
        DynamicSlidingWindowLayer.crop(layer, -num_tokens)
    elif isinstance(layer, DynamicLayer):
        DynamicLayer.crop(layer, -num_tokens)
    if layer.record_past:  # which it shares with a window of keys
        for index, size in layer.conv_kernel_size.items():
            if size is not None:
                layer.conv_states[index] = layer.conv_states[index][..., -size:]


class States:
    """A copy of all recurrent layers' states."""

    def __init__(self, layers: list[Any]) -> None:
        self._layers = layers
        self._convolved = [_copied(layer.conv_states) for layer in layers]
        self._summed = [_copied(layer.recurrent_states) for layer in layers]

    @classmethod
    def of(cls, layers: Any) -> Self:
        """Copy the states of those of the given layers that are recurrent."""
        return cls([layer for layer in layers if is_recurrent(layer)])

    def put_back(self) -> None:
        """Let the layers go on from this copy, which is theirs from here on."""
        for layer, convolved, summed in zip(self._layers, self._convolved, self._summed, strict=True):
            layer.conv_states.update(convolved)
            layer.recurrent_states.update(summed)


def _copied(states: dict[int, torch.Tensor | None]) -> dict[int, torch.Tensor | None]:
    return {index: None if state is None else state.clone() for index, state in states.items()}
