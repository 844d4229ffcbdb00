"""Open the weights of a draft, shared by all assistants that use a file, and check that tokens can be rolled back."""

import threading
import weakref
from typing import Any

import numpy as np

from uag.errors import UnsupportedError
from uag.gguf.cells import Cells
from uag.gguf.file import GgufFile, Weights
from uag.gguf.llama import LlamaError, library

_TOLERANCE = 1e-2
"""Largest difference of the scores of a token that is read again, relative to their standard deviation. Increase if
rounding makes a sound model fail; decrease to detect smaller errors."""

_lock = threading.RLock()
_weights: weakref.WeakValueDictionary[Any, Weights] = weakref.WeakValueDictionary()


def open_weights(file: GgufFile, gpu_layers: int = 0) -> Weights:
    """Return the weights of a file, shared by everything that uses them at the same time.

    Raises:
        UnsupportedError: llama.cpp cannot load them, or the model's cache cannot be rolled back.
    """
    state = file.path.stat()
    key = file.path, state.st_mtime_ns, state.st_size, gpu_layers
    with _lock:
        weights = _weights.get(key)
        if weights is None:
            weights = Weights(file, gpu_layers)
            if refusal := _refusal(weights):
                raise UnsupportedError(
                    f"The draft {str(file.path)!r} {refusal}. Use a decoder-only draft with attention layers only."
                )
            _weights[key] = weights
    return weights


def _refusal(weights: Weights) -> str:
    """Return why a rejected candidate cannot be rolled back; empty if it can."""
    llama = library()
    if llama.llama_model_is_diffusion(weights.pointer):
        return "generates by diffusion, not token by token"
    if llama.llama_model_has_encoder(weights.pointer) or not llama.llama_model_has_decoder(weights.pointer):
        return "is not a decoder-only model"
    try:
        cells = Cells(weights, num_cells=256, num_sequences=2, num_outputs=2, num_threads=1)
        cells.decode([0], [0], [(0,)], [False])
        if weights.has_states:
            cells.copy(0, 1)
        first = cells.decode([1], [1], [(0,)], [True])[0].copy()
        if weights.has_states:
            cells.copy(1, 0)
        else:
            cells.cut(0, 1)
        again = cells.decode([1], [1], [(0,)], [True])[0]
    except LlamaError as error:
        return f"cannot be run by llama.cpp: {error}"
    spread = float(first.std()) or 1.0
    if not np.isfinite(first).all() or float(np.abs(first - again).max()) > _TOLERANCE * spread:
        return "returns different scores after a token was rolled back"
    return ""
