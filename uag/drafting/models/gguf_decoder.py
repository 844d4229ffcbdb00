"""Draft passes of a GGUF file in one call of the kernels; see `uag.drafting.models.decoder`.

The weights are coded when a file is first opened, are shared by all drafts that use it at the same time, and are freed
with the last of them. The float weights are freed as soon as they are coded.
"""

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from uag import forks
from uag.drafting.drafter import Counts
from uag.drafting.models.base import Passes
from uag.drafting.models.decoder import KEEPS_ITS_WEIGHTS, MOST_KEPT
from uag.gguf import GgufDraft, UnknownFileError, load_model
from uag.kernels import Cache, Decoder, OwnKernels, decoder_of
from uag.projection import Node

_decoders: weakref.WeakValueDictionary[Any, Decoder] = weakref.WeakValueDictionary()
_lock = forks.turn()


class GgufDecoderPasses(Passes):
    """Runs draft passes of a file's decoder; see `Passes`."""

    def __init__(self, draft: GgufDraft, decoder: Decoder, num_ids: int | None = None) -> None:
        counts = Counts(num_bytes=decoder.num_bytes, passes=f"in one call, {decoder.weights}")
        max_positions = min(decoder.max_positions, draft.context or decoder.max_positions)
        super().__init__(draft.path.name, counts, decoder.vocab_size, max_positions, num_ids)
        self._decoder, self._num_threads = decoder, draft.threads
        self._cache = Cache(decoder, 0, draft.threads)

    def _begin(self, encoder_ids: Sequence[Sequence[int]]) -> None:  # noqa: ARG002 - no GGUF draft has an encoder
        if not self._cache.fits(self._decoder, len(self.rows)):
            self._cache = Cache(self._decoder, len(self.rows), self._num_threads)
        self._cache.lengths = [0] * len(self.rows)

    def _cut(self, row: int, length: int) -> int:
        self._cache.lengths[row] = min(self._cache.lengths[row], length)
        return self._cache.lengths[row]

    def _run(self, nodes: Mapping[int, list[Node]]) -> None:
        self._run_decoder(self._decoder, self._cache, nodes)

    def _free(self, *, has_failed: bool) -> None:
        if has_failed or self._cache.tensor.nbytes > MOST_KEPT:
            self._cache = Cache(self._decoder, 0, self._num_threads)


def decoder_of_file(draft: GgufDraft, form: str) -> Decoder | str:
    """Return the decoder of a file in a form of weights, or why it has none, phrased to follow "the file"."""
    if why := draft.unknown:
        return why
    if form == "model":
        return KEEPS_ITS_WEIGHTS
    if why := OwnKernels(nn.Linear(1, 1, dtype=torch.float32, device="cpu")).why_none:
        return why
    key = *draft.version, form
    with _lock, torch.device("cpu"):
        found: Decoder | str | None = _decoders.get(key)
        if found is None:
            try:
                found = decoder_of(load_model(draft.contents), form)
            except UnknownFileError as error:
                return str(error)
            except Exception as error:  # noqa: BLE001 - transformers may raise anything
                forks.let_pass(error)
                return f"cannot be loaded by transformers ({' '.join(str(error).split())[:140]})"
            if isinstance(found, Decoder):
                _decoders[key] = found
    return found
