"""The keys and values of a decoder's pass, and those that it reads in the cache of another model."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from uag.kernels import steps
from uag.kernels.steps import TYPES

if TYPE_CHECKING:
    from uag.kernels.decoder import Decoder

_FIRST_SLOTS = 512  # tokens of a draft's new cache, which is doubled when it is full


class Cache:
    """The keys and values of some sequences, with room for `num_slots` tokens of each at first.

    Attributes:
        lengths: the tokens of each sequence; lower one to remove its last tokens.
        bases: the position of each sequence's first token.
        past: where the keys and values of the tokens before it are, for each layer; see `read`.
        num_threads: threads of a pass; None for PyTorch's number.
        tensor: [layers, 2, sequences, kv_heads, capacity, head_dim].
    """

    def __init__(
        self,
        decoder: "Decoder",
        num_sequences: int,
        num_threads: int | None = None,
        num_slots: int = _FIRST_SLOTS,
        dtype: torch.dtype = torch.float16,
    ) -> None:
        self.num_threads = num_threads
        layers, kv_heads, dim = decoder.shape
        self.lengths = [0] * num_sequences
        self.bases = [0] * num_sequences
        self.past: Any = None
        self.places = [0] * num_sequences  # in the cache that `past` is of
        self._windows = decoder.windows
        shape = layers, 2, num_sequences, kv_heads, num_slots, dim
        self.tensor = torch.zeros(shape, dtype=dtype, device="cpu")

    def fits(self, decoder: "Decoder", num_sequences: int) -> bool:
        """Return whether a decoder can use this cache for so many sequences."""
        layers, _, sequences, kv_heads, _, dim = self.tensor.shape
        return (layers, kv_heads, dim) == decoder.shape and sequences == num_sequences

    def read(self, layers: Sequence[Any], places: Sequence[int]) -> bool:
        """Read the tokens before `bases` in the layers of another cache, whose last slots are those of these tokens.

        Its keys and values are [sequences, kv_heads, slots, head_dim]; `places` has each sequence's place in it, or -1
        for one that gets no tokens. Returns whether the layers have these tokens; if so, they must live until the next
        pass has run.
        """
        num, kv_heads, dim = self.tensor.shape[0], self.tensor.shape[3], self.tensor.shape[5]
        if len(layers) != num:
            return False
        self.past = (steps.CPast * num)()
        for of_layer, layer, window in zip(self.past, layers, self._windows, strict=True):
            keys, values = layer.keys, layer.values
            needed = max((base for base, place in zip(self.bases, places, strict=True) if place >= 0), default=0)
            needed = min(needed, window - 1) if window else needed
            is_plain = keys.is_cpu and keys.dtype is values.dtype and keys.dtype in TYPES
            if not is_plain or keys.shape[1::2] != (kv_heads, dim) or keys.shape[2] < needed:
                return False
            if keys.stride(3) != 1 or values.stride(3) != 1:
                return False
            of_layer.k, of_layer.v = keys.data_ptr(), values.data_ptr()
            of_layer.end, of_layer.type = keys.shape[2], TYPES[keys.dtype]
            of_layer.k_stride[:], of_layer.v_stride[:] = keys.stride()[:3], values.stride()[:3]
        self.places = [max(place, 0) for place in places]
        return True

    def reserve(self, length: int) -> None:
        """Make room for so many tokens of each sequence."""
        capacity = self.tensor.shape[4]
        if length > capacity:
            shape = list(self.tensor.shape)
            shape[4] = max(2 * capacity, length)
            larger = self.tensor.new_zeros(shape)
            larger[..., :capacity, :] = self.tensor
            self.tensor = larger
