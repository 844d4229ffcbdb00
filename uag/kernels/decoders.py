"""The decoders of transformers models: made when they are first asked for, tried, and kept with the model.

A trial decides whether a model has one: it compares the pass over the model's own weights with the model's forward, and
then the pass over the copy. A decoder is shared by all assistants, and made again when weights change.
"""

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from uag import forks
from uag.hf import models
from uag.hf.decoder import Description, UndescribedError, describe
from uag.hf.foreign_code import of_others
from uag.hf.inspection import inspected_once, is_training, modules, parameters, per_call
from uag.hf.trials import once
from uag.kernels import kernel
from uag.kernels.decoder import Decoder
from uag.kernels.decoder_cache import Cache
from uag.kernels.placing import OwnKernels

_NUM_IDS = 24  # tokens of the trial

_MOST_DIFFERENCE, _MOST_DIFFERENCE_IN_HALF = 0.01, 0.1
"""Largest RMS difference of the pass's logits from the model's, over their deviation, with the model's own weights.
Measured: 0.0004 in float32 (keys and values are kept in float16), 0.03 in bfloat16; a wrong description, above 0.2."""

_LEAST_SHARED = {"int8": 0.9, "int4": 0.6}
"""Least probability mass that the copy must share with the model's own weights, on ids without a meaning, which share
less than text. Measured on text: 0.96 with int8 (SmolLM2-135M)."""

_READ_WHOLE = {
    "cwm", "gemma", "gemma2", "gemma3_text", "gpt2", "granite", "llama", "ministral", "mistral", "olmo2", "olmo3",
    "opt", "phi", "phi3", "qwen2", "qwen3", "seed_oss", "smollm3", "stablelm", "starcoder2", "vaultgemma",
}  # fmt: skip
"""Model types of transformers whose forwards were read: they compute nothing that a description lacks, at any position.
A draft of another type may be wrong at positions that no trial reaches; a target may not."""

_NUM_SAMPLED = 8
"""Weights of each parameter that are compared to see that they changed, since `parameter.data` counts no changes."""

_MOST_IN_BUFFER = 1 << 12
"""Numbers of the largest buffer that is compared, such as a scale or rotary frequencies; masks are larger."""

_known: weakref.WeakKeyDictionary[Any, tuple[Any, dict[str, tuple[Any, Decoder | str]]]] = weakref.WeakKeyDictionary()
"""By model: the turn of making its decoders, and these by form, each with the weights that it was made from."""

_lock = forks.lock()


def decoder_of(model: Any, form: str, kernels: OwnKernels | None = None) -> Decoder | str:
    """Return a model's decoder in a form of weights, or why it has none, phrased to follow "the draft".

    It is made at the first call, and again if the weights have changed. `kernels` are the model's, if they are known.
    """
    with inspected_once(model):
        kernels = OwnKernels(model) if kernels is None else kernels
        if not kernels:
            return kernels.why_none
        weights = _fingerprint(model)
        with _lock:
            itself = next(iter(model.modules()))  # the model may be a weak proxy, which cannot be a key
            turn, of_model = _known.setdefault(itself, (forks.turn(), {}))
        with turn:  # another model's first call does not wait for this one's
            if form not in of_model or of_model[form][0] != weights:
                with torch.device("cpu"):  # users may have set another default device
                    of_model[form] = weights, _make(model, form)
            return of_model[form][1]


@per_call
def _fingerprint(model: Any) -> Any:
    """Return what a decoder is read from: weights by address, version and some numbers, and all else as it is."""
    found: list[Any] = []
    for weight in model.parameters():
        if not kernel.is_readable(weight):  # such as packed for quantization, or sparse: no decoder reads it
            found.append(type(weight))
            continue
        flat = weight.detach().view(-1) if weight.is_contiguous() else weight.detach().flatten()
        step = max(1, flat.numel() // _NUM_SAMPLED) if weight.dim() > 1 else 1  # vectors are copied even from the model
        version = 0 if weight.is_inference() else weight._version
        found.append((weight.data_ptr(), version, weight.dtype, _bytes(flat[::step])))
    buffers = tuple(_bytes(buffer) for buffer in model.buffers() if buffer.numel() <= _MOST_IN_BUFFER)
    owners = *map(vars, modules(model)), vars(model.config), vars(model.config.get_text_config(decoder=True))
    # Another thread's call may put a forward on a layer meanwhile, so the values are copied first.
    values = tuple(value for owner in owners for value in [*owner.values()] if type(value) in (bool, int, float, str))
    layers = tuple((type(each), *parameters(each)) for each in modules(model))
    return tuple(found), buffers, values, layers, is_training(model)


def _bytes(tensor: torch.Tensor) -> bytes:
    is_stored = tensor.is_cpu and tensor.layout is torch.strided
    return tensor.float().numpy().tobytes() if is_stored else b""


def _make(model: Any, form: str) -> Decoder | str:
    try:
        description = describe(model)
        if form == "model":
            return _why_not_whole(model, description) or Decoder(description, form)
        failed, kinds = "fails ({})".format, models.kinds_of(model)
        if why := once(model, "decoder", lambda: _differs(model, description), failed, kinds):
            return why
        decoder = Decoder(description, form)
        return once(model, f"decoder {form}", lambda: _shares(model, decoder), failed, (kinds, form)) or decoder
    except UndescribedError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - modules of others may be of any kind, and memory may run out
        forks.let_pass(error)
        return f"could not be copied ({type(error).__name__}: {' '.join(str(error).split())[:140]})"


def _why_not_whole(model: Any, description: Description) -> str:
    """Return why a target's passes cannot run over its own weights, or an empty string."""
    if model.config.get_text_config(decoder=True).model_type not in _READ_WHOLE or of_others(model):
        return "may compute something at later positions that a trial does not show"
    storages = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    weights = [layer.weight for layer in description.layers()] + [description.embedding]
    is_read = all(
        weight.untyped_storage().data_ptr() in storages and (weight.is_contiguous() or weight.stride(0) == 1)
        for weight in weights
    )
    return "" if is_read else "has weights that would have to be copied"


def _differs(model: Any, description: Description) -> str:
    """Return how the pass over the model's own weights differs from its forward, or an empty string."""
    ids = models.ordinary_ids(model, _NUM_IDS)
    expected = model(torch.tensor([ids])).logits[0].float()
    found = _logits(Decoder(description, "model"), ids)
    most = _MOST_DIFFERENCE if model.dtype is torch.float32 else _MOST_DIFFERENCE_IN_HALF
    difference = float((found - expected).square().mean().sqrt() / expected.std())
    what = f"computes something that its modules do not show ({difference:.2g} of the logits' deviation)"
    return "" if difference < most else what


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
