"""Draft passes in one call of the kernels, over a small copy of a draft's weights; see `uag.kernels.decoders`."""

from collections.abc import Mapping, Sequence
from typing import Any

from uag.drafting.models.torch_model import TorchPasses
from uag.kernels import Cache, Decoder, decoder_of
from uag.projection import Node

MOST_KEPT = 1 << 26  # bytes of the largest cache that is kept for the next call

KEEPS_ITS_WEIGHTS = "keeps its own weights (draft_weights='model')"


class DecoderPasses(TorchPasses):
    """Passes of a transformers model that run in one call of the kernels where that works, and else in PyTorch.

    `weights` is the form of the weights: "int8", "int4", or "model" (as they are, in PyTorch).
    """

    def __init__(self, model: Any, num_ids: int | None, weights: str, *, is_static: bool) -> None:
        super().__init__(model, num_ids, is_static=is_static)
        self._form = weights
        self._decoder: Decoder | None = None
        self._cache: Cache | None = None

    def _begin(self, encoder_ids: Sequence[Sequence[int]]) -> None:
        found = KEEPS_ITS_WEIGHTS if self._form == "model" else decoder_of(self.model, self._form)
        self._decoder = None if isinstance(found, str) else found
        self.counts.passes = f"in one call, {self._form}" if self._decoder else f"in PyTorch: the draft {found}"
        if self._decoder is None:
            self._cache = None
            super()._begin(encoder_ids)
            return
        if self._static is not None:
            self._static.renew(())  # the draft may have been on a device with graphs
        self.max_positions = self._decoder.max_positions
        if self._cache is None or not self._cache.fits(self._decoder, len(self.rows)):
            self._cache = Cache(self._decoder, len(self.rows))
        self._cache.lengths = [0] * len(self.rows)

    def _free(self, *, has_failed: bool) -> None:
        if self._decoder is None:
            super()._free(has_failed=has_failed)
        elif has_failed or (self._cache is not None and self._cache.tensor.nbytes > MOST_KEPT):
            self._cache = None

    def _cut(self, row: int, length: int) -> int:
        if self._cache is None:
            return super()._cut(row, length)
        self._cache.lengths[row] = min(self._cache.lengths[row], length)
        return self._cache.lengths[row]

    def _run(self, nodes: Mapping[int, list[Node]]) -> None:
        if self._decoder is None or self._cache is None:
            super()._run(nodes)
            return
        self._run_decoder(self._decoder, self._cache, nodes)
