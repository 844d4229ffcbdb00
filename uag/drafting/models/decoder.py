"""Draft passes in one call of the kernels, over a small copy of a draft's weights; see `uag.kernels.decoder`.

A trial decides whether a model's passes run so: it compares the pass over the model's own weights with the model's
forward, and then the pass over the copy. The copy stays with the model, is shared by all assistants, and is made again
when weights change.
"""

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from uag import forks
from uag.drafting.models.torch_model import TorchPasses
from uag.hf import models
from uag.hf.decoder import Description, UndescribedError, describe
from uag.hf.inspection import inspected_once, is_training
from uag.hf.trials import once
from uag.kernels import Cache, Decoder, OwnKernels
from uag.projection import Node

_NUM_IDS = 24
"""Tokens of the trial."""

_MOST_DIFFERENCE, _MOST_DIFFERENCE_IN_HALF = 0.01, 0.1
"""Largest RMS difference of the pass's logits from the model's, over their deviation, with the model's own weights.
Measured: 0.0004 in float32 (keys and values are kept in float16), 0.03 in bfloat16; a wrong description, above 0.2."""

_LEAST_SHARED = {"int8": 0.9, "int4": 0.6}
"""Least probability mass that the copy must share with the model's own weights, on ids without a meaning, which share
less than text. Measured on text: 0.96 with int8 (SmolLM2-135M)."""

MOST_KEPT = 1 << 26
"""Bytes of the largest cache that is kept for the next call."""

_NUM_SAMPLED = 8
"""Weights of each parameter that are compared to see that they changed, since `parameter.data` counts no changes."""

_known: weakref.WeakKeyDictionary[Any, tuple[Any, dict[str, tuple[Any, Decoder | str]]]] = weakref.WeakKeyDictionary()
"""By model: the turn of making its decoders, and these by form, each with the weights that it was made from."""

_lock = forks.lock()


class DecoderPasses(TorchPasses):
    """Passes of a transformers model that run in one call of the kernels where that works, and else in PyTorch.

    Args:
        model: see `TorchPasses`.
        num_ids: see `Passes`.
        weights: the form of the weights, "int8", "int4" or "model" (as they are, in PyTorch).
        is_static: see `TorchPasses`.
    """

    def __init__(self, model: Any, num_ids: int | None, weights: str, *, is_static: bool) -> None:
        super().__init__(model, num_ids, is_static=is_static)
        self._form = weights
        self._decoder: Decoder | None = None
        self._cache: Cache | None = None

    def _begin(self, encoder_ids: Sequence[Sequence[int]]) -> None:
        found = decoder_of(self.model, self._form)
        self._decoder = None if isinstance(found, str) else found
        self.counts.passes = (
            f"in PyTorch: the draft {found}" if isinstance(found, str) else f"in one call, {self._form}"
        )
        if self._decoder is None:
            self._cache = None
            super()._begin(encoder_ids)
            return
        if self._static is not None:
            self._static.end()  # the draft may have been on a device with graphs
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


def decoder_of(model: Any, form: str) -> Decoder | str:
    """Return a model's decoder in a form of weights, or why it has none, phrased to follow "the draft".

    It is made at the first call, and again if the weights have changed.
    """
    with inspected_once(model):
        kernels = OwnKernels(model)
        if form == "model" or not kernels:
            return kernels.why_none or "keeps its own weights (draft_weights='model')"
        weights = _fingerprint(model)
        with _lock:
            itself = next(iter(model.modules()))  # the model may be a weak proxy, which cannot be a key
            turn, of_model = _known.setdefault(itself, (forks.turn(), {}))
        with turn:  # another model's first call does not wait for this one's
            if form not in of_model or of_model[form][0] != weights:
                of_model[form] = weights, _make(model, form)
            return of_model[form][1]


def _fingerprint(model: Any) -> Any:
    """Return what changes when a model's weights do: addresses, versions, and some of the numbers."""
    found = []
    for weight in model.parameters():
        flat = weight.detach().view(-1) if weight.is_contiguous() else weight.detach().flatten()
        sample = flat[:: max(1, flat.numel() // _NUM_SAMPLED)].float() if flat.is_cpu else flat[:0]
        version = 0 if weight.is_inference() else weight._version
        found.append((weight.data_ptr(), version, weight.dtype, tuple(sample.tolist())))
    return tuple(found), tuple(map(type, model.modules())), is_training(model)


def _make(model: Any, form: str) -> Decoder | str:
    try:
        description = describe(model)
        if why := once(
            model, "decoder", lambda: _differs(model, description), lambda why: f"fails ({why})", models.kinds_of(model)
        ):
            return why
        decoder = Decoder(description, form)
        key = models.kinds_of(model), form
        return (
            once(model, f"decoder {form}", lambda: _shares(model, decoder), lambda why: f"fails ({why})", key)
            or decoder
        )
    except UndescribedError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - modules of others may be of any kind, and memory may run out
        return f"could not be copied ({type(error).__name__}: {' '.join(str(error).split())[:140]})"


def _differs(model: Any, description: Description) -> str:
    """Return how the pass over the model's own weights differs from its forward, or an empty string."""
    ids = models.ordinary_ids(model, _NUM_IDS)
    expected = model(torch.tensor([ids])).logits[0].float()
    found = _logits(Decoder(description, "model"), ids)
    most = _MOST_DIFFERENCE if model.dtype is torch.float32 else _MOST_DIFFERENCE_IN_HALF
    difference = float((found - expected).square().mean().sqrt() / expected.std())
    return (
        ""
        if difference < most
        else f"computes something that its modules do not show ({difference:.2g} of the logits' deviation)"
    )


def _shares(model: Any, decoder: Decoder) -> str:
    """Return that the copy's distributions differ from the model's, or an empty string."""
    ids = models.ordinary_ids(model, _NUM_IDS)
    expected = torch.softmax(model(torch.tensor([ids])).logits[0].float(), dim=-1)
    found = torch.softmax(_logits(decoder, ids), dim=-1)
    lost = 1 - float(torch.minimum(expected, found).sum(dim=-1).mean())
    form = decoder.weights
    return "" if lost <= 1 - _LEAST_SHARED[form] else f"loses {lost:.0%} of its distribution with {form} weights"


def _logits(decoder: Decoder, ids: Sequence[int]) -> torch.Tensor:
    """Return the logits of all tokens of a text, which is read in two parts."""
    cache, half = Cache(decoder, 1), len(ids) // 2
    return torch.cat([decoder.run(cache, [part], len(ids)) for part in (ids[:half], ids[half:])])
